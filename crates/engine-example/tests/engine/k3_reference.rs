//! Kimi K3 in double precision, written from its description: whole sequences, one matrix after
//! another, keys and values expanded, the delta rule with its matrices spelled out. It shares
//! nothing with the engine.

use half::bf16;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

type Vector = Vec<f64>;

/// What a run gives.
pub(crate) struct Outcome {
    /// `[tokens][vocabulary]`.
    pub(crate) logits: Vec<Vector>,
    /// By layer that has experts: each token's, ascending.
    pub(crate) routes: Vec<(u16, Vec<Vec<u16>>)>,
    /// The smallest distance between the last chosen score and the first that was not.
    pub(crate) least_margin: f64,
}

impl Outcome {
    pub(crate) fn largest_logit(&self) -> f64 {
        self.logits.iter().flatten().fold(0.0, |most, logit| most.max(logit.abs()))
    }

    /// Mean negative log-likelihood of the tokens after the first.
    pub(crate) fn loss(&self, tokens: &[u32]) -> f64 {
        let each = self.logits.iter().zip(&tokens[1..]).map(|(row, &token)| {
            row.iter().map(|logit| logit.exp()).sum::<f64>().ln() - row[token as usize]
        });
        each.sum::<f64>() / (tokens.len() - 1) as f64
    }
}

/// A checkpoint as numbers.
pub(crate) struct Reference {
    /// Flat values by name behind `language_model.`.
    floats: BTreeMap<String, Vector>,
    bytes: BTreeMap<String, Vec<u8>>,
    config: Value,
}

impl Reference {
    pub(crate) fn open(dir: &Path) -> Self {
        let text = std::fs::read_to_string(dir.join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&text).unwrap();
        let (mut floats, mut bytes) = (BTreeMap::new(), BTreeMap::new());
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "safetensors") {
                continue;
            }
            let file = std::fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&file).unwrap().iter() {
                let name = name.strip_prefix("language_model.").unwrap().to_owned();
                let data = view.data();
                let values: Vector = match view.dtype() {
                    Dtype::F32 => {
                        let four = data.as_chunks().0.iter();
                        four.map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
                    }
                    Dtype::BF16 => {
                        let two = data.as_chunks().0.iter();
                        two.map(|bytes| f64::from(bf16::from_le_bytes(*bytes).to_f32())).collect()
                    }
                    Dtype::U8 => {
                        bytes.insert(name, data.to_vec());
                        continue;
                    }
                    other => panic!("{name} is {other:?}"),
                };
                floats.insert(name, values);
            }
        }
        Self { floats, bytes, config: config["text_config"].clone() }
    }

    fn size(&self, key: &str) -> usize {
        usize::try_from(self.config[key].as_u64().unwrap()).unwrap()
    }

    fn delta_size(&self, key: &str) -> usize {
        usize::try_from(self.config["linear_attn_config"][key].as_u64().unwrap()).unwrap()
    }

    fn get(&self, name: &str) -> &[f64] {
        self.floats.get(name).unwrap_or_else(|| panic!("{name}"))
    }

    /// `name.weight` times `x`.
    fn times(&self, name: &str, x: &[f64]) -> Vector {
        product(self.get(&format!("{name}.weight")), x)
    }

    /// An expert's matrix, whichever way it is stored: two codes a byte, the even column in the low
    /// half, and an exponent for each 32 columns.
    fn expert_matrix(&self, name: &str) -> Vector {
        if let Some(weight) = self.floats.get(&format!("{name}.weight")) {
            return weight.clone();
        }
        let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let packed = &self.bytes[&format!("{name}.weight_packed")];
        let scales = &self.bytes[&format!("{name}.weight_scale")];
        let codes = packed.iter().flat_map(|byte| [byte % 16, byte / 16]);
        let values = codes.enumerate().map(|(at, code)| {
            let sign = if code < 8 { 1.0 } else { -1.0 };
            let scale = 2f64.powi(i32::from(scales[at / 32]) - 127);
            sign * magnitudes[usize::from(code % 8)] * scale
        });
        values.collect()
    }

    pub(crate) fn run(&self, tokens: &[u32]) -> Outcome {
        let (hidden, layers) = (self.size("hidden_size"), self.size("num_hidden_layers"));
        let block = self.size("attn_res_block_size");
        let full: Vec<u64> =
            serde_json::from_value(self.config["linear_attn_config"]["full_attn_layers"].clone())
                .unwrap();
        let table = self.get("model.embed_tokens.weight");
        let mut live: Vec<Option<Vector>> = tokens
            .iter()
            .map(|&id| Some(table[id as usize * hidden..][..hidden].to_vec()))
            .collect();
        let mut past: Vec<Vec<Vector>> = vec![Vec::new(); tokens.len()];
        let mut outcome =
            Outcome { logits: Vec::new(), routes: Vec::new(), least_margin: f64::MAX };
        for layer in 0..layers {
            let name = format!("model.layers.{layer}");
            let read: Vec<Vector> = (0..tokens.len())
                .map(|t| {
                    let res = format!("{name}.self_attention_res");
                    let h = self.mix(&past[t], &live[t], &res);
                    self.norm(&h, &format!("{name}.input_layernorm.weight"))
                })
                .collect();
            if layer % block == 0 {
                for t in 0..tokens.len() {
                    past[t].push(live[t].take().unwrap());
                }
            }
            let attention = format!("{name}.self_attn");
            let added = if full.contains(&(layer as u64 + 1)) {
                self.latent_attention(&attention, &read)
            } else {
                self.delta_attention(&attention, &read)
            };
            live.iter_mut().zip(added).for_each(|(live, y)| add(live, y));
            let mut chosen = Vec::new();
            for t in 0..tokens.len() {
                let h = self.mix(&past[t], &live[t], &format!("{name}.mlp_res"));
                let x = self.norm(&h, &format!("{name}.post_attention_layernorm.weight"));
                let y = if layer < self.size("first_k_dense_replace") {
                    self.mlp(&format!("{name}.mlp"), &x)
                } else {
                    let moe = format!("{name}.block_sparse_moe");
                    let (y, route) = self.moe(&moe, &x, &mut outcome.least_margin);
                    chosen.push(route);
                    y
                };
                add(&mut live[t], y);
            }
            if !chosen.is_empty() {
                outcome.routes.push((u16::try_from(layer).unwrap(), chosen));
            }
        }
        for t in 0..tokens.len() {
            let h = self.mix(&past[t], &live[t], "model.output_attn_res");
            outcome.logits.push(self.times("lm_head", &self.norm(&h, "model.norm.weight")));
        }
        outcome
    }

    fn eps(&self) -> f64 {
        self.config["rms_norm_eps"].as_f64().unwrap()
    }

    fn norm(&self, x: &[f64], weight: &str) -> Vector {
        rms_norm(x, self.get(weight), self.eps())
    }

    fn mix(&self, past: &[Vector], live: &Option<Vector>, name: &str) -> Vector {
        if past.is_empty() {
            return live.clone().unwrap();
        }
        let all: Vec<&Vector> = past.iter().chain(live).collect();
        let projection = self.get(&format!("{name}_proj.weight"));
        let scores: Vector = all
            .iter()
            .map(|v| dot(&self.norm(v, &format!("{name}_norm.weight")), projection))
            .collect();
        let weights = softmax(&scores);
        let mut out = vec![0.0; all[0].len()];
        for (v, weight) in all.iter().zip(weights) {
            out.iter_mut().zip(v.iter()).for_each(|(y, x)| *y += weight * x);
        }
        out
    }

    fn latent_attention(&self, name: &str, xs: &[Vector]) -> Vec<Vector> {
        let heads = self.size("num_attention_heads");
        let (nope, rope) = (self.size("qk_nope_head_dim"), self.size("qk_rope_head_dim"));
        let (rank, value) = (self.size("kv_lora_rank"), self.size("v_head_dim"));
        let of = |part: &str| format!("{name}.{part}");
        let scale = 1.0 / ((nope + rope) as f64).sqrt();
        let mut keys: Vec<Vec<Vector>> = Vec::new();
        let mut values: Vec<Vec<Vector>> = Vec::new();
        let mut out = Vec::new();
        for x in xs {
            let low = rms_norm(
                &self.times(&of("q_a_proj"), x),
                self.get(&of("q_a_layernorm.weight")),
                1e-6,
            );
            let q = self.times(&of("q_b_proj"), &low);
            let both = self.times(&of("kv_a_proj_with_mqa"), x);
            let (compressed, shared) = both.split_at(rank);
            let compressed = rms_norm(compressed, self.get(&of("kv_a_layernorm.weight")), 1e-6);
            let expanded = self.times(&of("kv_b_proj"), &compressed);
            let heads_of = |from: usize, len: usize| -> Vec<Vector> {
                (0..heads).map(|h| expanded[h * (nope + value) + from..][..len].to_vec()).collect()
            };
            keys.push(heads_of(0, nope).into_iter().map(|k| [&k, shared].concat()).collect());
            values.push(heads_of(nope, value));
            let mut mixed = Vec::new();
            for h in 0..heads {
                let q = &q[h * (nope + rope)..][..nope + rope];
                let scores: Vector = keys.iter().map(|key| scale * dot(q, &key[h])).collect();
                let weights = softmax(&scores);
                for i in 0..value {
                    mixed.push(weights.iter().zip(&values).map(|(w, v)| w * v[h][i]).sum::<f64>());
                }
            }
            let gate = self.times(&of("g_proj"), x);
            let gated: Vector = mixed.iter().zip(gate).map(|(y, g)| y * sigmoid(g)).collect();
            out.push(self.times(&of("o_proj"), &gated));
        }
        out
    }

    fn delta_attention(&self, name: &str, xs: &[Vector]) -> Vec<Vector> {
        let (heads, d) = (self.delta_size("num_heads"), self.delta_size("head_dim"));
        let of = |part: &str| format!("{name}.{part}");
        let bound = self.config["linear_attn_config"]["gate_lower_bound"].as_f64().unwrap();
        let [q, k, v] = ["q", "k", "v"].map(|stream| {
            let rows: Vec<Vector> =
                xs.iter().map(|x| self.times(&of(&format!("{stream}_proj")), x)).collect();
            convolve(&rows, self.get(&of(&format!("{stream}_conv1d.weight"))))
        });
        let (rates, bias) = (self.get(&of("A_log")), self.get(&of("dt_bias")));
        let mut states = vec![vec![vec![0.0; d]; d]; heads];
        let mut out = Vec::new();
        for (t, x) in xs.iter().enumerate() {
            let z = self.times(&of("f_b_proj"), &self.times(&of("f_a_proj"), x));
            let beta = self.times(&of("b_proj"), x);
            let mut mixed = Vec::new();
            for (h, state) in states.iter_mut().enumerate() {
                let part = |row: &Vector| row[h * d..][..d].to_vec();
                let query: Vector =
                    unit(&part(&q[t])).iter().map(|x| x / (d as f64).sqrt()).collect();
                let (key, value, beta) = (unit(&part(&k[t])), part(&v[t]), sigmoid(beta[h]));
                let kept: Vec<Vector> = (0..d)
                    .map(|i| {
                        let c = h * d + i;
                        let g = bound * sigmoid(rates[h].exp() * (z[c] + bias[c]));
                        state[i].iter().map(|s| s * g.exp()).collect()
                    })
                    .collect();
                for i in 0..d {
                    for j in 0..d {
                        let erased: f64 = (0..d).map(|r| key[i] * key[r] * kept[r][j]).sum();
                        state[i][j] = kept[i][j] - beta * erased + beta * key[i] * value[j];
                    }
                }
                let found: Vector =
                    (0..d).map(|j| (0..d).map(|i| state[i][j] * query[i]).sum()).collect();
                mixed.extend(self.norm(&found, &of("o_norm.weight")));
            }
            let gate = self.times(&of("g_proj"), x);
            let gated: Vector = mixed.iter().zip(gate).map(|(y, g)| y * sigmoid(g)).collect();
            out.push(self.times(&of("o_proj"), &gated));
        }
        out
    }

    fn activate(&self, gate: &[f64], up: &[f64]) -> Vector {
        let beta = self.config["activation_situ_beta"].as_f64().unwrap();
        let linear = self.config["activation_situ_linear_beta"].as_f64().unwrap();
        let each = gate.iter().zip(up);
        each.map(|(g, u)| beta * (g / beta).tanh() * sigmoid(*g) * linear * (u / linear).tanh())
            .collect()
    }

    fn mlp(&self, name: &str, x: &[f64]) -> Vector {
        let part = |part: &str| self.times(&format!("{name}.{part}_proj"), x);
        self.times(&format!("{name}.down_proj"), &self.activate(&part("gate"), &part("up")))
    }

    fn moe(&self, name: &str, x: &[f64], least_margin: &mut f64) -> (Vector, Vec<u16>) {
        let scores: Vector =
            self.times(&format!("{name}.gate"), x).iter().map(|s| sigmoid(*s)).collect();
        let bias = self.get(&format!("{name}.gate.e_score_correction_bias"));
        let top_k = self.size("num_experts_per_token");
        let mut order: Vec<usize> = (0..scores.len()).collect();
        let biased = |e: &usize| scores[*e] + bias[*e];
        order.sort_by(|a, b| biased(b).total_cmp(&biased(a)));
        *least_margin = least_margin.min(biased(&order[top_k - 1]) - biased(&order[top_k]));
        order.truncate(top_k);
        let sum: f64 = order.iter().map(|&e| scores[e]).sum();
        let factor = self.config["routed_scaling_factor"].as_f64().unwrap() / (sum + 1e-20);
        let z = self.times(&format!("{name}.routed_expert_down_proj"), x);
        let mut y = vec![0.0; z.len()];
        for &e in &order {
            let matrix = |part: &str| self.expert_matrix(&format!("{name}.experts.{e}.{part}"));
            let inner = self.activate(&product(&matrix("w1"), &z), &product(&matrix("w3"), &z));
            let one = product(&matrix("w2"), &inner);
            y.iter_mut().zip(one).for_each(|(y, one)| *y += factor * scores[e] * one);
        }
        let normed = self.norm(&y, &format!("{name}.routed_expert_norm.weight"));
        let mut out = self.times(&format!("{name}.routed_expert_up_proj"), &normed);
        let shared = self.mlp(&format!("{name}.shared_experts"), x);
        out.iter_mut().zip(shared).for_each(|(y, s)| *y += s);
        let mut route: Vec<u16> = order.iter().map(|&e| u16::try_from(e).unwrap()).collect();
        route.sort_unstable();
        (out, route)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn product(matrix: &[f64], x: &[f64]) -> Vector {
    assert_eq!(matrix.len() % x.len(), 0);
    matrix.chunks(x.len()).map(|row| dot(row, x)).collect()
}

fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vector {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
    assert_eq!(x.len(), weight.len());
    x.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
}

fn unit(x: &[f64]) -> Vector {
    let size = (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|x| x / size).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(scores: &[f64]) -> Vector {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    scores.iter().map(|s| (s - max).exp() / sum).collect()
}

/// Four taps a channel over the last four rows, then SiLU.
fn convolve(rows: &[Vector], taps: &[f64]) -> Vec<Vector> {
    let width = rows[0].len();
    let at = |t: usize, c: usize| {
        let sum: f64 =
            (0..4).filter(|j| t + j >= 3).map(|j| taps[c * 4 + j] * rows[t + j - 3][c]).sum();
        sum * sigmoid(sum)
    };
    (0..rows.len()).map(|t| (0..width).map(|c| at(t, c)).collect()).collect()
}

fn add(live: &mut Option<Vector>, y: Vector) {
    match live {
        Some(live) => live.iter_mut().zip(y).for_each(|(x, y)| *x += y),
        None => *live = Some(y),
    }
}
