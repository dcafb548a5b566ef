//! A fit on disk: safetensors, half-precision tables, the rest in its metadata.

use super::{Correction, Fit, FitError};
use half::f16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::path::Path;

const FORMAT: &str = "pilot-fit";
const VERSION: &str = "1";
/// The most bytes of a file that is read whole: a fit of the largest model known has a tenth.
const MAX_FILE_BYTES: u64 = 16 << 30;

impl Fit {
    /// What the file is called beside a model.
    pub const FILE_NAME: &str = "pilot.safetensors";

    /// The file's bytes: the same for the same fit.
    ///
    /// # Errors
    /// [`FitError::File`] if the tables do not have their shapes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FitError> {
        let [experts, hidden] = [self.n_experts, self.hidden];
        let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        let half = |values: &[f32]| {
            values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect()
        };
        let full = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for one in &self.corrections {
            let mut add = |part: &str, dtype, shape: &[usize], bytes| {
                let name = format!("{}.{}.{part}", one.source, one.target);
                tensors.push((name, dtype, shape.to_vec(), bytes));
            };
            add("gate", Dtype::F16, &[experts, hidden], half(&one.gate));
            add("after", Dtype::F16, &[experts, experts], half(&one.after));
            add("again", Dtype::F16, &[experts, experts], half(&one.again));
            add("bias", Dtype::F32, &[experts], full(&one.bias));
            add("sd", Dtype::F32, &[experts], full(&one.sd));
            let ridge = one.ridge.to_le_bytes().to_vec();
            add("ridge", Dtype::F64, &[1], ridge);
        }
        let problem = |error: safetensors::SafeTensorError| FitError::File {
            path: Self::FILE_NAME.into(),
            problem: error.to_string(),
        };
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            Ok((name.as_str(), TensorView::new(*dtype, shape.clone(), bytes)?))
        });
        let views = views.collect::<Result<Vec<_>, _>>().map_err(problem)?;
        // One entry: a map of several would be written in any order.
        let about = serde_json::json!({
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "top_k": self.top_k,
        });
        let metadata = HashMap::from([(FORMAT.to_owned(), about.to_string())]);
        safetensors::serialize(views, Some(metadata)).map_err(problem)
    }

    /// Reads a file's bytes; `path` is for the error.
    ///
    /// # Errors
    /// [`FitError::File`] with what is wrong: never more is read than the bytes hold.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, FitError> {
        let invalid = |problem: String| FitError::File { path: path.to_owned(), problem };
        let as_invalid = |error: safetensors::SafeTensorError| invalid(error.to_string());
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(as_invalid)?;
        let about = header.metadata().as_ref().and_then(|all| all.get(FORMAT));
        let about = about.ok_or_else(|| invalid(format!("no {FORMAT} in its metadata")))?;
        let about: serde_json::Value =
            serde_json::from_str(about).map_err(|error| invalid(error.to_string()))?;
        if about["version"] != VERSION {
            return Err(invalid(format!("version {}, not {VERSION}", about["version"])));
        }
        let model = about["model"].as_str().ok_or_else(|| invalid("no model".to_owned()))?;
        let top_k = about["top_k"].as_u64().and_then(|top_k| usize::try_from(top_k).ok());
        let top_k = top_k.ok_or_else(|| invalid("no top_k".to_owned()))?;
        let file = SafeTensors::deserialize(bytes).map_err(as_invalid)?;
        let mut pairs: Vec<(u16, u16)> = Vec::new();
        for name in file.names() {
            let mut parts = name.split('.');
            let mut number = || parts.next().and_then(|part| part.parse().ok());
            match (number(), number()) {
                (Some(source), Some(target)) => pairs.push((source, target)),
                _ => return Err(invalid(format!("tensor {name} is of no pair of layers"))),
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        let (source, target) = *pairs.first().ok_or_else(|| invalid("no tensors".to_owned()))?;
        let first = file.tensor(&format!("{source}.{target}.gate")).map_err(as_invalid)?;
        let &[n_experts, hidden] = first.shape() else {
            return Err(invalid(format!("a gate of shape {:?}", first.shape())));
        };
        let read = |&(source, target): &(u16, u16)| -> Result<Correction, FitError> {
            let values = |part: &str, shape: &[usize]| {
                let name = format!("{source}.{target}.{part}");
                let view = file.tensor(&name).map_err(as_invalid)?;
                if view.shape() != shape {
                    let found = view.shape();
                    return Err(invalid(format!("{name} has shape {found:?}, not {shape:?}")));
                }
                numbers(&view)
                    .ok_or_else(|| invalid(format!("{name} is {} or not finite", view.dtype())))
            };
            let sd = values("sd", &[n_experts])?;
            if let Some(expert) = sd.iter().position(|sd| *sd <= 0.0) {
                return Err(invalid(format!("{source}.{target}.sd[{expert}] is {}", sd[expert])));
            }
            Ok(Correction {
                source,
                target,
                gate: narrow(&values("gate", &[n_experts, hidden])?),
                bias: narrow(&values("bias", &[n_experts])?),
                after: narrow(&values("after", &[n_experts, n_experts])?),
                again: narrow(&values("again", &[n_experts, n_experts])?),
                sd: narrow(&sd),
                ridge: values("ridge", &[1])?[0],
            })
        };
        let corrections = pairs.iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self { model: model.to_owned(), hidden, n_experts, top_k, corrections })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`FitError::Io`] and what [`Fit::from_bytes`] refuses.
    pub fn read(path: &Path) -> Result<Self, FitError> {
        let io = |source| FitError::Io { path: path.to_owned(), source };
        let size = std::fs::metadata(path).map_err(io)?.len();
        if size > MAX_FILE_BYTES {
            let problem = format!("{size} bytes, more than {MAX_FILE_BYTES}");
            return Err(FitError::File { path: path.to_owned(), problem });
        }
        Self::from_bytes(path, &std::fs::read(path).map_err(io)?)
    }

    /// Writes a file, whole or not at all.
    ///
    /// # Errors
    /// [`FitError::Io`] and what [`Fit::to_bytes`] refuses.
    pub fn write(&self, path: &Path) -> Result<u64, FitError> {
        let io = |source| FitError::Io { path: path.to_owned(), source };
        let bytes = self.to_bytes()?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}.part", std::process::id()));
        std::fs::write(&partial, &bytes).map_err(io)?;
        std::fs::rename(&partial, path).map_err(io)?;
        Ok(bytes.len() as u64)
    }
}

/// All values; `None` for another type or one that is not finite.
fn numbers(view: &TensorView<'_>) -> Option<Vec<f64>> {
    let data = view.data();
    let values: Vec<f64> = match view.dtype() {
        Dtype::F16 => data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f64()).collect(),
        Dtype::F32 => {
            data.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()
        }
        Dtype::F64 => data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        _ => return None,
    };
    values.iter().all(|value| value.is_finite()).then_some(values)
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::Places;
    use proptest::prelude::*;
    use router_trace::ModelShape;

    fn fit() -> Fit {
        let row =
            |n: usize, from: f32| (0..n).map(|at| from + at as f32 * 0.25).collect::<Vec<_>>();
        let correction = |source, target| Correction {
            source,
            target,
            gate: row(6, 1.0),
            bias: row(3, -0.5),
            after: row(9, 0.0),
            again: row(9, 2.0),
            sd: row(3, 0.5),
            ridge: 1e-2,
        };
        Fit {
            model: "abc".to_owned(),
            hidden: 2,
            n_experts: 3,
            top_k: 2,
            corrections: vec![correction(0, 1), correction(1, 2)],
        }
    }

    #[test]
    fn what_is_written_is_read_and_other_models_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Fit::FILE_NAME);
        let fit = fit();
        fit.write(&path).unwrap();
        assert_eq!(Fit::read(&path).unwrap(), fit);
        assert_eq!(fit.to_bytes().unwrap(), std::fs::read(&path).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(fit.correction(1, 2).is_some() && fit.correction(0, 2).is_none());
        let places =
            |n_experts| Places::new(&ModelShape { moe_layers: vec![0, 1, 2], n_experts, top_k: 2 });
        fit.check("abc", 2, &places(3)).unwrap();
        let error = fit.check("abd", 2, &places(3)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the fit is of another model: routers: abc in the fit, abd in the model"
        );
        assert_eq!(error.kind(), "fit-of-another-model");
        assert!(
            fit.check("abc", 4, &places(3)).is_err() && fit.check("abc", 2, &places(4)).is_err()
        );
        let error = Fit::read(&dir.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), "io");
    }

    #[test]
    fn other_files_are_named_for_what_they_are() {
        let refused =
            |bytes: &[u8]| Fit::from_bytes(Path::new("f"), bytes).unwrap_err().to_string();
        assert!(refused(b"").starts_with("f: not a fit: "));
        let empty = safetensors::serialize(Vec::<(&str, TensorView<'_>)>::new(), None).unwrap();
        assert_eq!(refused(&empty), "f: not a fit: no pilot-fit in its metadata");
        let mut bad = fit();
        bad.corrections[0].sd[1] = 0.0;
        assert_eq!(refused(&bad.to_bytes().unwrap()), "f: not a fit: 0.1.sd[1] is 0");
        let mut bad = fit();
        bad.corrections[1].gate[0] = f32::INFINITY;
        assert_eq!(
            refused(&bad.to_bytes().unwrap()),
            "f: not a fit: 1.2.gate is F16 or not finite"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            at in prop::collection::vec((0_usize..2000, any::<u8>()), 0..6),
            cut in 0_usize..3000,
        ) {
            let mut bytes = fit().to_bytes().unwrap();
            for (at, byte) in at {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(cut.max(1));
            if let Ok(fit) = Fit::from_bytes(Path::new("f"), &bytes) {
                prop_assert!(fit.corrections.iter().all(|one| one.sd.len() == fit.n_experts));
            }
        }
    }
}
