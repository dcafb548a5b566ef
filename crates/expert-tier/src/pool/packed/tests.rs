use super::*;
use crate::pool::{Dtype, PartRole, Pool};
use std::time::{Duration, Instant};

/// The largest open model: 92 layers of 896 experts, six tensors each.
fn large() -> Index {
    let mut parts = Vec::new();
    let mut end = 0;
    for (role, cols) in [
        (PartRole::Gate, 1792),
        (PartRole::GateScale, 112),
        (PartRole::Up, 1792),
        (PartRole::UpScale, 112),
        (PartRole::Down, 1536),
        (PartRole::DownScale, 112),
    ] {
        let (offset, len) = (padded(end).unwrap(), 3072 * u64::from(cols));
        parts.push(SchemaPart { role, dtype: Dtype::U8, rows: 3072, cols, offset, len });
        end = offset + len;
    }
    let stride = end.next_multiple_of(ALIGN);
    let ids = (1..93_u16).flat_map(|layer| (0..896_u16).map(move |i| ExpertId::new(layer, i)));
    let experts: Vec<PlacedExpert> = (0_u64..)
        .zip(ids)
        .map(|(number, id)| PlacedExpert {
            id,
            schema: 0,
            offset: number * stride,
            len: end,
            checksum: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        })
        .collect();
    Index {
        created_by: "a \"test\"".to_owned(),
        experts_len: experts.len() as u64 * stride,
        spine: Vec::new(),
        schemas: vec![Schema { len: end, parts }],
        experts,
    }
}

#[test]
fn the_largest_model_opens_at_once() {
    let index = large();
    let text = index.render();
    println!("{} experts: {} bytes of index", index.experts.len(), text.len());
    assert!(text.len() < 5_000_000);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(INDEX), &text).unwrap();
    let file = File::create(dir.path().join(EXPERTS)).unwrap();
    if let Err(error) = file.set_len(index.experts_len) {
        println!("SKIPPED: a file of {} bytes: {error}", index.experts_len);
        return;
    }
    let begun = Instant::now();
    let pool = Pool::open(dir.path()).unwrap();
    println!("opened in {:?}", begun.elapsed());
    // An optimised build needs a tenth of it; machines that run tests may be busy.
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(pool.layout().total_experts(), 82_432);
    let last = ExpertId::new(92, 895);
    assert_eq!(pool.checksum(last), Some(82_431_u64.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    assert_eq!(pool.checksum(ExpertId::new(0, 0)), None);
    assert_eq!(pool.checksum(ExpertId::new(92, 896)), None);
}

#[test]
fn what_is_written_reads_back() {
    let mut index = large();
    index.experts.truncate(3);
    index.experts_len = index.experts[2].offset + index.schemas[0].len.next_multiple_of(ALIGN);
    index.spine = vec![SpineFile { file: "spine.safetensors".to_owned(), len: 9, checksum: 7 }];
    let again = Index::parse(index.render().as_bytes(), Path::new("pool.json")).unwrap();
    assert_eq!(again.created_by, index.created_by);
    assert_eq!(again.experts_len, index.experts_len);
    assert_eq!(again.spine, index.spine);
    assert_eq!(again.schemas, index.schemas);
    assert_eq!(again.experts, index.experts);
}

#[test]
fn spine_names_read_back_as_their_canonical_names() {
    for (canonical, stored) in [
        ("embed_tokens.weight", "model.embed_tokens.weight"),
        ("layers.3.self_attn.q_proj.weight", "model.layers.3.self_attn.q_proj.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("", "model."),
        ("x", "model.x"),
        ("model.x", "model.model.x"),
    ] {
        assert_eq!(stored_name(canonical).as_deref(), Some(stored), "{canonical}");
    }
    // No stored name has this canonical one.
    assert_eq!(stored_name("language_model.x"), None);
    assert_eq!(stored_name("layers.0.mlp.experts.0.up_proj.weight"), None);
}
