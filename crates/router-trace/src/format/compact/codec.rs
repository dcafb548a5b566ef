use crate::ids::ModelShape;
use crate::pass::{LayerPass, PassInfo};
use crate::route::{PassKind, Phase};

/// Flags of the first byte of a record; the low two bits are the kind.
const PREFILL: u8 = 1 << 2;
const NEW_STEP: u8 = 1 << 3;
const NEW_POSITION: u8 = 1 << 4;
const MANY_TOKENS: u8 = 1 << 5;
const OTHER_LAYER: u8 = 1 << 6;
const RESERVED: u8 = 1 << 7;

/// What the next record is told relative to. Each block starts it anew.
///
/// Decoding a model's ordinary pass needs one byte a layer and three more a step: the
/// layer follows the one before, and step and position go on by one.
#[derive(Clone, Copy)]
pub(super) struct Context {
    step: u64,
    position: u64,
    /// Place of the next layer in the header's list.
    next_layer: usize,
    /// Tokens of the record before: how far the position goes on with the next step.
    tokens: u64,
}

impl Context {
    pub(super) fn new(first_step: u64) -> Self {
        Self { step: first_step, position: 0, next_layer: 0, tokens: 0 }
    }
}

/// Bits of one expert id.
pub(super) fn id_bits(n_experts: u16) -> u32 {
    u16::BITS - n_experts.saturating_sub(1).leading_zeros()
}

/// Appends a record whose rules were checked.
pub(super) fn encode(
    out: &mut Vec<u8>,
    context: &mut Context,
    shape: &ModelShape,
    info: &PassInfo,
    experts: &[u16],
) {
    let layer = shape.moe_layers.binary_search(&info.layer).expect("the layer was checked");
    let tokens = (experts.len() / usize::from(shape.top_k)) as u64;
    let new_step = info.step != context.step;
    if new_step {
        context.next_layer = 0;
        context.position = context.position.wrapping_add(context.tokens);
    }
    let mut flags = match info.kind {
        PassKind::Normal => 0,
        PassKind::SpecAccept => 1,
        PassKind::SpecFallback => 2,
    };
    let mut set = |flag, on| flags |= if on { flag } else { 0 };
    set(PREFILL, info.phase == Phase::Prefill);
    set(NEW_STEP, new_step);
    set(NEW_POSITION, info.position != context.position);
    set(MANY_TOKENS, tokens != 1);
    set(OTHER_LAYER, layer != context.next_layer);
    out.push(flags);
    if new_step {
        put_varint(out, info.step - context.step);
    }
    if flags & NEW_POSITION != 0 {
        put_varint(out, zigzag(info.position.wrapping_sub(context.position)));
    }
    if flags & MANY_TOKENS != 0 {
        put_varint(out, tokens);
    }
    if flags & OTHER_LAYER != 0 {
        put_varint(out, layer as u64);
    }
    put_ids(out, id_bits(shape.n_experts), experts);
    *context = Context { step: info.step, position: info.position, next_layer: layer + 1, tokens };
}

/// Why a payload is not one.
pub(super) type Fault = String;

/// Takes the record at `input`'s start; the ids are not yet compared with the model.
pub(super) fn decode(
    input: &mut &[u8],
    context: &mut Context,
    shape: &ModelShape,
    most_tokens: u64,
) -> Result<LayerPass, Fault> {
    let flags = take_byte(input)?;
    if flags & RESERVED != 0 {
        return Err(format!("a record begins with the unknown flags {flags:#04x}"));
    }
    let kind = match flags & 3 {
        0 => PassKind::Normal,
        1 => PassKind::SpecAccept,
        2 => PassKind::SpecFallback,
        other => return Err(format!("a record has the unknown kind {other}")),
    };
    if flags & NEW_STEP != 0 {
        let delta = take_varint(input)?;
        let step = context.step.checked_add(delta).filter(|_| delta > 0);
        context.step = step.ok_or_else(|| format!("a step of {} + {delta}", context.step))?;
        context.next_layer = 0;
        context.position = context.position.wrapping_add(context.tokens);
    }
    if flags & NEW_POSITION != 0 {
        let delta = take_varint(input)?;
        context.position = context.position.wrapping_add(unzigzag(delta));
    }
    let tokens = if flags & MANY_TOKENS != 0 { take_varint(input)? } else { 1 };
    if tokens == 0 || tokens > most_tokens {
        return Err(format!("a record has {tokens} tokens, must be 1 to {most_tokens}"));
    }
    let place = if flags & OTHER_LAYER != 0 {
        usize::try_from(take_varint(input)?).unwrap_or(usize::MAX)
    } else {
        context.next_layer
    };
    let known = shape.moe_layers.len();
    let Some(&layer) = shape.moe_layers.get(place) else {
        return Err(format!("a record names layer place {place} of {known}"));
    };
    let count = tokens as usize * usize::from(shape.top_k);
    let experts = take_ids(input, id_bits(shape.n_experts), count)?;
    context.next_layer = place + 1;
    context.tokens = tokens;
    let phase = if flags & PREFILL != 0 { Phase::Prefill } else { Phase::Decode };
    let info = PassInfo { step: context.step, position: context.position, layer, phase, kind };
    Ok(LayerPass::new(info, shape.top_k, experts).expect("the count is whole routes"))
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(input: &mut &[u8]) -> Result<u64, Fault> {
    let mut value = 0_u64;
    for shift in (0..70).step_by(7) {
        let byte = take_byte(input)?;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit; a last byte of zero would be a second way
        // to write the same number.
        if (shift == 63 && bits > 1) || (shift > 0 && byte == 0) {
            return Err("a number is not in its one form of at most 64 bits".to_owned());
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number does not end".to_owned())
}

fn take_byte(input: &mut &[u8]) -> Result<u8, Fault> {
    let (&byte, rest) = input.split_first().ok_or("the block ends inside a record")?;
    *input = rest;
    Ok(byte)
}

/// Small for a small step in either direction; `delta` is a difference modulo 2^64.
fn zigzag(delta: u64) -> u64 {
    (delta << 1) ^ (0_u64.wrapping_sub(delta >> 63))
}

fn unzigzag(code: u64) -> u64 {
    (code >> 1) ^ (0_u64.wrapping_sub(code & 1))
}

/// Appends ids of `bits` bits, the first in the lowest bits, and zeros up to a whole byte.
fn put_ids(out: &mut Vec<u8>, bits: u32, ids: &[u16]) {
    let (mut held, mut filled) = (0_u32, 0);
    for &id in ids {
        held |= u32::from(id) << filled;
        filled += bits;
        while filled >= 8 {
            out.push(held as u8);
            held >>= 8;
            filled -= 8;
        }
    }
    if filled > 0 {
        out.push(held as u8);
    }
}

fn take_ids(input: &mut &[u8], bits: u32, count: usize) -> Result<Vec<u16>, Fault> {
    let needed = (count * bits as usize).div_ceil(8);
    let (packed, rest) = input.split_at_checked(needed).ok_or_else(|| {
        format!("{count} ids need {needed} bytes, the block has {} left", input.len())
    })?;
    let mut ids = Vec::with_capacity(count);
    let mut bytes = packed.iter();
    let (mut held, mut filled) = (0_u32, 0);
    for _ in 0..count {
        while filled < bits {
            let byte = bytes.next().expect("the bytes were counted");
            held |= u32::from(*byte) << filled;
            filled += 8;
        }
        ids.push((held & ((1 << bits) - 1)) as u16);
        held >>= bits;
        filled -= bits;
    }
    if held != 0 {
        return Err("the bits after the last id are not zero".to_owned());
    }
    *input = rest;
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_every_width_come_back() {
        for n_experts in [1, 2, 3, 8, 64, 896, 1024, 1025, 32_768, 32_769, u16::MAX] {
            let bits = id_bits(n_experts);
            for count in [0_u16, 1, 3, 16, 31] {
                let ids: Vec<_> = (0..count)
                    .map(|i| (u32::from(i) * 40_503 % u32::from(n_experts)) as u16)
                    .collect();
                let mut out = Vec::new();
                put_ids(&mut out, bits, &ids);
                assert_eq!(out.len(), (usize::from(count) * bits as usize).div_ceil(8));
                let mut input = out.as_slice();
                assert_eq!(take_ids(&mut input, bits, ids.len()).unwrap(), ids);
                assert!(input.is_empty());
            }
        }
        // 896 experts: 16 ids in 20 bytes, which is what makes a K3 trace small.
        assert_eq!(id_bits(896), 10);
        assert_eq!(id_bits(1), 0);
    }

    #[test]
    fn numbers_have_one_form() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(take_varint(&mut out.as_slice()).unwrap(), value);
            assert_eq!(unzigzag(zigzag(value)), value);
        }
        for bad in [&[0x80, 0][..], &[0xff; 11], &[0x80], &[]] {
            assert!(take_varint(&mut &bad[..]).is_err(), "{bad:?}");
        }
        assert_eq!(zigzag(1), 2);
        assert_eq!(zigzag(u64::MAX), 1);
    }
}
