//! GGUF files made by the `gguf` package (`tests/tools/make_gguf.py`): every block format's
//! numbers against the package's, whole models against the reference runs of the checkpoints they
//! were made from, and the tokenizer against its `tokenizer.json`.

use crate::golden::by_weight;
use crate::support::{Checkpoint, Golden, data_path, fixture_dir, max_difference};
use engine_example::config::ModelConfig;
use engine_example::kernels::{BlockType, Isa, Matrix, MatrixData, Scratch, matmul};
use engine_example::models::{LogitRows, MoeCall};
use engine_example::text::{Message, Text};
use engine_example::weights::{SharedBytes, SpineWeights, StoredTensor, WeightFormat};
use expert_tier::Pool;
use expert_tier::pool::gguf::Metadata;
use expert_tier::pool::{Dtype, Extent, PartRole};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    data_path("data/gguf").join(name)
}

#[test]
fn every_block_format_gives_the_packages_numbers() {
    let bytes = std::fs::read(data_path("data/gguf-blocks.safetensors")).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap();
    for (name, kind) in [
        ("q8_0", BlockType::Q8_0),
        ("q4_0", BlockType::Q4_0),
        ("q4_k", BlockType::Q4K),
        ("q5_k", BlockType::Q5K),
        ("q6_k", BlockType::Q6K),
        ("mxfp4", BlockType::Mxfp4),
    ] {
        let stored = all.tensor(&format!("{name}.bytes")).unwrap();
        let values = all.tensor(&format!("{name}.values")).unwrap();
        let wanted: Vec<f32> =
            values.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let (rows, cols) = (4, 512);
        let data = MatrixData::Blocks { kind, bytes: stored.data() };
        let matrix = Matrix::new(rows, cols, data).unwrap();
        for (row, wanted) in wanted.chunks(cols).enumerate() {
            let mut got = vec![0.0; cols];
            matrix.row_to_f32(row, &mut got);
            // The package rounds the product before it takes the minimum off; the product is at
            // most 31 scales of 63 halves of 0.02.
            let bound = match kind {
                BlockType::Q4K | BlockType::Q5K => 40.0 * f32::EPSILON,
                _ => 0.0,
            };
            for (column, (got, wanted)) in got.iter().zip(wanted).enumerate() {
                assert!((got - wanted).abs() <= bound, "{name} {row} {column}: {got} {wanted}");
            }
        }
        // The kernels multiply by the same numbers, in every instruction set.
        let x: Vec<f32> = (0..cols).map(|c| ((c * 37 % 101) as f32 - 50.0) / 50.0).collect();
        for isa in Isa::available() {
            let mut out = vec![0.0; rows];
            matmul(isa, &matrix, &x, 1, &mut out, &mut Scratch::default());
            for (got, row) in out.iter().zip(wanted.chunks(cols)) {
                let terms = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let (sum, size) =
                    terms.fold((0.0, 0.0), |(sum, size): (f64, f64), t| (sum + t, size + t.abs()));
                assert!((f64::from(*got) - sum).abs() <= size * 1e-5, "{name} {isa}: {got} {sum}");
            }
        }
    }
}

fn read(pool: &Pool, extent: Extent) -> Vec<u8> {
    let bytes = std::fs::read(pool.path_of(extent.file)).unwrap();
    bytes[extent.offset as usize..extent.end() as usize].to_vec()
}

/// The model of a pool with its experts by name, read whole; as numbers if `decoded`.
fn checkpoint(path: &Path, decoded: bool) -> Checkpoint {
    let pool = Pool::open(path).unwrap();
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>| {
        let (dtype, bytes) = match block(dtype) {
            Some(kind) if decoded => (Dtype::F32, numbers(kind, &shape, &bytes)),
            _ => (dtype, bytes),
        };
        tensors.insert(name, StoredTensor { dtype, shape, bytes: SharedBytes::new(bytes) });
    };
    for (name, tensor) in pool.spine() {
        let shape = tensor.shape.iter().map(|&dim| dim as usize).collect();
        add(name.clone(), tensor.dtype, shape, read(&pool, tensor.extent));
    }
    for (id, expert) in pool.layout().iter() {
        assert_eq!(expert.parts.len(), 3, "three slices an expert");
        for part in &expert.parts {
            let projection = match part.role {
                PartRole::Gate => "gate",
                PartRole::Up => "up",
                _ => "down",
            };
            let name =
                format!("layers.{}.mlp.experts.{}.{projection}_proj.weight", id.layer, id.index);
            let shape = vec![part.rows as usize, part.cols as usize];
            add(name, part.dtype, shape, read(&pool, part.extent));
        }
    }
    Checkpoint {
        config: {
            let config = pool.config().unwrap();
            ModelConfig::of_family(config.family, &config.text).unwrap()
        },
        weights: SpineWeights::new(tensors, WeightFormat::default(), Isa::detect()),
    }
}

fn block(dtype: Dtype) -> Option<BlockType> {
    match dtype {
        Dtype::Q8_0 => Some(BlockType::Q8_0),
        Dtype::Q4_0 => Some(BlockType::Q4_0),
        Dtype::Mxfp4 => Some(BlockType::Mxfp4),
        _ => None,
    }
}

fn numbers(kind: BlockType, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    let matrix = Matrix::new(shape[0], shape[1], MatrixData::Blocks { kind, bytes }).unwrap();
    let mut row = vec![0.0; shape[1]];
    let rows = (0..shape[0]).flat_map(|r| {
        matrix.row_to_f32(r, &mut row);
        row.clone()
    });
    rows.flat_map(f32::to_le_bytes).collect()
}

/// Logits of a full forward pass, and chosen experts by weight.
fn full(checkpoint: &Checkpoint, tokens: &[u32]) -> (Vec<Vec<f32>>, Vec<Vec<u16>>) {
    let (experts, mut model) = (checkpoint.experts(), checkpoint.decoder());
    let mut routes = Vec::new();
    let mut run = |call: &MoeCall<'_>, out: &mut [f32]| {
        let experts_of = |routed| by_weight(routed).iter().map(|one| one.0).collect();
        routes.extend(call.routes.iter().map(experts_of));
        experts.run(call, out)
    };
    let logits = model.forward(tokens, LogitRows::All, &mut run).unwrap();
    (logits.to_vec2().unwrap(), routes)
}

#[test]
fn exact_files_give_the_recorded_routes_and_logits() {
    for (name, fixture) in [
        ("qwen3moe-bf16.gguf", "qwen3moe-bf16"),
        ("qwen3moe-edge-f16-00003-of-00008.gguf", "qwen3moe-edge-f16-sharded"),
        // Up-projections of keys and values apart, and in one matrix; without query LoRA.
        ("deepseek-v3-f32.gguf", "deepseek-v3-f32"),
        ("deepseek-v3-noqlora-f16.gguf", "deepseek-v3-noqlora-f16"),
        ("deepseek-v3-noqlora-joint-f16.gguf", "deepseek-v3-noqlora-f16"),
        ("deepseek-v3-bf16.gguf", "deepseek-v3-bf16-mtp"),
        ("kimi-k2-bf16.gguf", "kimi-k2-bf16"),
    ] {
        let golden = Golden::open(&fixture_dir(fixture));
        let checkpoint = checkpoint(&file(name), false);
        let own = Checkpoint::open(&fixture_dir(fixture)).config;
        assert_eq!(checkpoint.config, own, "{name}");
        let (logits, routes) = full(&checkpoint, &golden.full_input());
        let layers = golden.info["moe_layers"].as_array().unwrap();
        let wanted = layers.iter().flat_map(|layer| {
            let ids = &golden.info["topk"][layer.to_string()]["ids"];
            serde_json::from_value::<Vec<Vec<u16>>>(ids.clone()).unwrap()
        });
        assert_eq!(routes, wanted.collect::<Vec<_>>(), "{name}");
        let off = max_difference(&logits, &golden.rows("logits"));
        println!("{name}: off by {off:.1e}");
        assert!(
            off < golden.info["suggested_logit_atol"].as_f64().unwrap() as f32,
            "{name}: {off}"
        );
    }
}

#[test]
fn quantised_files_give_what_their_numbers_give() {
    // How far the formats are from the weights that they were made of, as a share of the logits'
    // size. The weights are random and the routers' margins tiny: some routes flip, and the most
    // that one logit moves says nothing.
    for (name, fixture, tolerance) in [
        ("qwen3moe-q8_0.gguf", "qwen3moe-f32", 0.06),
        ("qwen3moe-mixed.gguf", "qwen3moe-f32", 0.25),
        ("kimi-k2-q8_0.gguf", "kimi-k2-bf16", 0.2),
    ] {
        let golden = Golden::open(&fixture_dir(fixture));
        let stored = full(&checkpoint(&file(name), false), &golden.ids("input_ids"));
        let decoded = full(&checkpoint(&file(name), true), &golden.ids("input_ids"));
        assert_eq!(stored.1, decoded.1, "{name}: the same routes");
        let off = max_difference(&stored.0, &decoded.0);
        assert!(off < 1e-4, "{name}: off by {off} from its own numbers");
        let wanted: Vec<Vec<f32>> = golden.rows("logits")[..stored.0.len()].to_vec();
        let square =
            |of: &mut dyn Iterator<Item = f32>| of.map(|v| f64::from(v).powi(2)).sum::<f64>();
        let pairs = || stored.0.iter().flatten().zip(wanted.iter().flatten());
        let error = square(&mut pairs().map(|(got, wanted)| got - wanted));
        let share = (error / square(&mut wanted.iter().flatten().copied())).sqrt();
        println!("{name}: {share:.3} from what it was made of");
        assert!(share < tolerance, "{name}: {share} from what it was made of");
    }
}

#[test]
fn the_tokenizer_in_the_metadata_is_the_one_it_was_made_from() {
    let text = Text::from_gguf(&Metadata::read(&file("tokenizer.gguf")).unwrap()).unwrap().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
    let wanted = Text::open(&model).unwrap();
    let mut samples = vec![
        String::new(),
        "a  b\n\n c\t'll don't 12345 \u{1F600} e\u{301} 你好".to_owned(),
        "<|im_start|>user\nhi<|im_end|>\n".to_owned(),
    ];
    for entry in std::fs::read_dir(data_path("data/texts")).unwrap() {
        samples.push(std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    assert!(samples.len() > 4);
    for sample in &samples {
        let ids = text.encode(sample).unwrap();
        assert_eq!(ids, wanted.encode(sample).unwrap(), "{sample:?}");
        assert_eq!(text.decode(&ids, false).unwrap(), wanted.decode(&ids, false).unwrap());
    }
    assert_eq!(text.vocab_size(), wanted.vocab_size());
    assert_eq!(text.stop_ids(), [4095]);
    let prompt = text.chat().unwrap().render(&[Message::new("user", "hi")], false).unwrap();
    assert_eq!(prompt, "<|im_start|>user\nhi<|im_end|>\n");
    let none = Metadata::read(&file("qwen3moe-q8_0.gguf")).unwrap();
    assert!(Text::from_gguf(&none).unwrap().is_none());
}
