use super::*;

/// Reproducible randomness without a dependency.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

fn file(json: &str, data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        file(r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 8),
        file(r#"{"__metadata__":{"format":"pt"}}   "#, 0),
        file(
            r#"{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"b":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"z":{"dtype":"I64","shape":[0,7],"data_offsets":[16,16]}}"#,
            16,
        ),
        file(
            r#"{"\u0061\n":{"shape":[4],"dtype":"U8","more":[{}],"data_offsets":[0,4]},"é":{"dtype":"F8_E4M3","shape":[1,1],"data_offsets":[4,5]}}"#,
            5,
        ),
    ]
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    const PIECES: [&[u8]; 12] = [
        b"[",
        b"]",
        b"{",
        b"}",
        b"\"",
        b"-1",
        b"1e9",
        b"18446744073709551615",
        b"null",
        b"\\u",
        b"\xff",
        b"99999999999999999999999",
    ];
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
        match random.below(5) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.below(256) as u8,
            2 => drop(bytes.splice(at..at, PIECES[random.below(12)].iter().copied())),
            3 => {
                let end = (at + random.below(12)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let end = (at + random.below(60)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
}

fn parse(bytes: &[u8]) -> Result<(), TierError> {
    let path = Path::new("fuzz");
    let len = header_len(bytes, bytes.len() as u64, path)?;
    let text = &bytes[8..8 + len as usize];
    let header = parse_header(text, bytes.len() as u64, path)?;
    let held = header.tensors.capacity() * size_of::<RawTensor<'_>>()
        + header.shapes.capacity() * size_of::<u64>();
    assert!(held <= 4096 + 16 * text.len(), "{held} bytes for {}", text.len());
    let mut at = 8 + len;
    for tensor in &header.tensors {
        assert_eq!(8 + len + tensor.begin, at);
        at = 8 + len + tensor.end;
        assert!(header.shape(tensor).len() <= text.len());
    }
    assert_eq!(at, bytes.len() as u64);
    Ok(())
}

#[test]
fn mutated_headers_never_panic() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut sound, mut kinds) = (0_usize, HashSet::new());
    for seed in seeds() {
        parse(&seed).unwrap();
        for round in 0..12_000 {
            let mut bytes = seed.clone();
            mutate(&mut bytes, &mut random);
            // Half of the time the length is right again, so that the text is reached.
            if round % 2 == 0 && bytes.len() > 8 {
                let data =
                    seed.len() - 8 - u64::from_le_bytes(seed[..8].try_into().unwrap()) as usize;
                let len = (bytes.len() - 8).saturating_sub(data) as u64;
                bytes[..8].copy_from_slice(&len.to_le_bytes());
            }
            match parse(&bytes) {
                Ok(()) => sound += 1,
                Err(error) => drop(kinds.insert(error.kind())),
            }
        }
    }
    // The mutations reach every kind of fault, and some leave the file sound.
    assert!(sound > 100, "{sound}");
    for kind in [
        "header-too-large",
        "header-truncated",
        "header-invalid",
        "bad-offsets",
        "size-mismatch",
        "overflow",
        "truncated-data",
        "duplicate-name",
        "unsupported",
    ] {
        assert!(kinds.contains(kind), "{kind} was never reached: {kinds:?}");
    }
}

#[test]
fn every_cut_is_an_error() {
    for seed in seeds() {
        for len in 0..seed.len() {
            assert!(parse(&seed[..len]).is_err());
        }
    }
}
