//! The same for a person: one line a thing, aligned.

use super::facts::{Facts, Placement, Stored};
use super::rope::Rope;
use crate::cli::output::bytes;
use expert_tier::pool::{HeadKind, SetAside, Setting, SettingSource};

struct Page(String);

impl Page {
    fn line(&mut self, what: &str, text: &str) {
        self.0.push_str(&format!("{what:<13} {text}\n"));
    }
}

pub(super) fn report(facts: &Facts) -> String {
    let mut page = Page(String::new());
    let files = facts.files.len();
    page.line("pool", &facts.path.display().to_string());
    let count = plural(files, "file");
    page.line("format", &format!("{}, {count}, {}", facts.format, bytes(facts.file_bytes)));
    if let Some(model_type) = &facts.model_type {
        let layers = facts.num_hidden_layers.map_or_else(String::new, |n| format!(", {n} layers"));
        let model_type = if model_type.is_empty() { "of no named type" } else { model_type };
        page.line("model", &format!("{model_type}{layers}"));
    }
    experts(facts, &mut page);
    dense(facts, &mut page);
    config(facts, &mut page);
    set_aside(facts, &mut page);
    if let Some(storage) = &facts.storage {
        let number = |value: &Result<u64, _>| {
            value.as_ref().map_or_else(|_| "not available".to_owned(), |kib| format!("{kib} KiB"))
        };
        let (read_ahead, request) = (&storage.read_ahead_kb, &storage.max_sectors_kb);
        page.line(
            "storage",
            &format!(
                "{}, read-ahead {}, largest request {}",
                storage.fs.name,
                number(read_ahead),
                number(request)
            ),
        );
    }
    for note in &facts.notes {
        page.line("note", note);
    }
    page.0
}

fn experts(facts: &Facts, page: &mut Page) {
    let Some(sizes) = facts.expert_bytes else {
        page.line("experts", "none");
        return;
    };
    let per_layer = span(facts.fewest_experts_per_layer, facts.experts_per_layer);
    let top_k = facts.top_k.map_or_else(String::new, |top_k| format!(", a token uses {top_k}"));
    page.line(
        "experts",
        &format!(
            "{} in {}, {per_layer} a layer{top_k}",
            facts.experts,
            layers(&facts.expert_layers)
        ),
    );
    let each = if sizes.min == sizes.max {
        format!("{} each", bytes(sizes.min))
    } else {
        let of = [sizes.min, sizes.median, sizes.max].map(bytes);
        format!("{} to {}, median {}", of[0], of[2], of[1])
    };
    page.line("expert bytes", &format!("{each}, {} in all", bytes(sizes.total)));
    page.line("stored as", &stored(&facts.expert_dtypes));
    let Placement {
        fewest_extents_per_expert,
        most_extents_per_expert,
        start_at_2mib,
        start_at_64kib,
        start_at_4kib,
        unaligned_parts,
        experts_with_unaligned_parts,
    } = facts.placement;
    page.line(
        "extents",
        &format!(
            "{} an expert; {start_at_2mib} experts start at 2 MiB, {start_at_64kib} at 64 KiB, \
             {start_at_4kib} at 4 KiB",
            span(fewest_extents_per_expert, most_extents_per_expert)
        ),
    );
    if unaligned_parts > 0 {
        page.line(
            "not zero-copy",
            &format!(
                "{unaligned_parts} parts of {experts_with_unaligned_parts} experts do not lie at \
                 a multiple of their element's size"
            ),
        );
    }
}

fn dense(facts: &Facts, page: &mut Page) {
    let what = if facts.experts > 0 || facts.model_type.is_some() { "spine" } else { "tensors" };
    let tensors = plural(facts.spine_tensors, "tensor");
    let of = if facts.spine_dtypes.is_empty() { String::new() } else { ": ".to_owned() };
    let line =
        format!("{tensors}, {}{of}{}", bytes(facts.spine_bytes), stored(&facts.spine_dtypes));
    page.line(what, &line);
    let names = &facts.unaligned_spine_tensors;
    if let Some(first) = names.first() {
        let more = match names.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        page.line(
            "not zero-copy",
            &format!("{first}{more}: not at a multiple of the element's size"),
        );
    }
    if let Some(head) = facts.head {
        let unused = match facts.unused_head_bytes {
            0 => String::new(),
            n => format!("; the stored lm_head.weight ({}) is not used", bytes(n)),
        };
        let head = match head {
            HeadKind::Tied => "the embedding, one copy for both",
            HeadKind::Separate => "lm_head.weight",
        };
        page.line("head", &format!("{head}{unused}"));
    }
}

fn config(facts: &Facts, page: &mut Page) {
    let Some(model_type) = &facts.model_type else { return };
    let setting = |setting: Option<Setting<bool>>| match setting {
        None => "unknown: absent, and this model_type has no known default".to_owned(),
        Some(Setting { value, source: SettingSource::Config }) => value.to_string(),
        Some(Setting { value, source: SettingSource::FamilyDefault }) => {
            format!("{value} (default of {model_type})")
        }
    };
    if facts.experts > 0 {
        page.line("router", &format!("norm_topk_prob {}", setting(facts.norm_topk_prob)));
    }
    if facts.tie_word_embeddings.is_some() {
        let tied = setting(facts.tie_word_embeddings);
        page.line("embeddings", &format!("tie_word_embeddings {tied}"));
    }
    if let Some(quantization) = &facts.quantization {
        page.line("quantization", quantization);
    }
    if let Some(Rope { theta, scaling, factor, original_max_positions, attention_factor, .. }) =
        &facts.rope
    {
        let factor = factor.map_or_else(String::new, |factor| format!(", factor {factor}"));
        let over = original_max_positions.map_or_else(String::new, |n| format!(" over {n}"));
        let scaling = if *scaling == "none" { "plain" } else { scaling };
        let cosines = match attention_factor {
            1.0 => String::new(),
            factor => format!(", cosines times {factor}"),
        };
        page.line("rope", &format!("{scaling}, theta {theta}{factor}{over}{cosines}"));
    }
    if let Some(scale) = facts.attention_scale {
        page.line("attention", &format!("scale {scale:.9}"));
    }
}

fn set_aside(facts: &Facts, page: &mut Page) {
    if !facts.extra_layers.is_empty() {
        page.line(
            "extra",
            &format!(
                "{} for predicting further tokens: {}, not served",
                layers(&facts.extra_layers),
                plural(facts.extra_experts, "expert")
            ),
        );
    }
    let mut aside = |what: &str, of: &str, set: &SetAside| {
        if set.tensors > 0 {
            let tensors = plural(set.tensors, "tensor");
            page.line(what, &format!("{tensors} {of}, {}, not served", bytes(set.bytes)));
        }
    };
    aside("beyond", "of layers behind the last one", &facts.beyond_last_layer);
    aside("foreign", "of other models", &facts.foreign);
    aside("unknown", "of experts, of no known kind", &facts.unknown_expert_tensors);
}

fn stored(list: &[Stored]) -> String {
    let one = |stored: &Stored| format!("{} ({})", stored.dtype, bytes(stored.bytes));
    list.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// `1 file`, `2 files`.
pub(in crate::cli) fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn span(min: usize, max: usize) -> String {
    if min == max { max.to_string() } else { format!("{min} to {max}") }
}

/// `layers 0-2, 5`.
fn layers(layers: &[u16]) -> String {
    let word = if layers.len() == 1 { "layer" } else { "layers" };
    let runs = layers.chunk_by(|a, b| a.checked_add(1) == Some(*b)).map(|run| match run {
        [only] => only.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    format!("{word} {}", runs.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::layers;

    #[test]
    fn layers_are_told_as_ranges() {
        for (list, text) in [
            (&[0, 1, 2, 3][..], "layers 0-3"),
            (&[7], "layer 7"),
            (&[1, 5], "layers 1, 5"),
            (&[0, 2, 3, 65534, 65535], "layers 0, 2-3, 65534-65535"),
        ] {
            assert_eq!(layers(list), text);
        }
    }
}
