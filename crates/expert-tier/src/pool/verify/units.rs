//! What is read in which pieces: the tensors of all files, cut where experts begin and end.

use super::report::Draft;
use crate::error::TierError;
use crate::pool::gguf;
use crate::pool::safetensors::{data_start, header_len, parse_header, read_header};
use crate::pool::{Dtype, Extent, FileIdentity, PartRole, Pool, PoolFile};
use router_trace::ExpertId;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;

/// One read. Above this no device gets faster, and the buffers of all threads stay small.
pub(super) const PIECE_BYTES: u64 = 8 << 20;

/// What a range of a file is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// A weight of an expert.
    Weight(ExpertId),
    /// Scales, of an expert's or of a spine weight.
    Scale,
    /// The logical shape of an expert's packed weight.
    Shape(ExpertId, PartRole),
    /// Any other tensor of the spine.
    Spine,
    /// A tensor that is not served.
    Aside,
}

/// A tensor, or one expert's slice of a tensor.
#[derive(Debug)]
pub(super) struct Unit {
    /// The stored name; for a slice also whose it is.
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) extent: Extent,
    /// The unit's first element, counted from the start of its tensor.
    pub(super) element: u64,
    pub(super) purpose: Use,
}

/// One read of one thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Job {
    pub(super) file: u32,
    pub(super) bytes: Range<u64>,
    /// The units it touches.
    pub(super) units: Range<usize>,
}

/// Everything that is to be read.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In order of files and bytes; empty tensors are none.
    pub(super) units: Vec<Unit>,
    pub(super) jobs: Vec<Job>,
    pub(super) tensors: usize,
    pub(super) header_bytes: u64,
    /// Whether each file could be planned.
    pub(super) readable: Vec<bool>,
}

impl Plan {
    /// Reads the headers again, as the pool keeps no names of experts' tensors. A file whose
    /// header is not the one that was opened becomes a problem and is left out.
    pub(super) fn of(pool: &Pool, draft: &mut Draft<'_>) -> Self {
        let known = known_ranges(pool);
        let mut plan = Self::default();
        for (index, file) in (0_u32..).zip(pool.files()) {
            let planned = plan.add_file(index, file, &known);
            plan.readable.push(planned.is_ok());
            if let Err(error) = planned {
                draft.problem(error.kind(), error.to_string());
            }
        }
        plan
    }

    fn add_file(&mut self, index: u32, file: &PoolFile, known: &Known) -> Result<(), TierError> {
        let path = &file.path;
        let io = |operation, source| TierError::Io { path: path.clone(), operation, source };
        let opened = File::open(path).map_err(|source| io("open", source))?;
        let found = FileIdentity::of(&opened).map_err(|source| io("stat", source))?;
        if found != file.identity {
            let opened = file.identity;
            return Err(TierError::FileChanged {
                path: path.clone(),
                opened: Box::new(opened),
                found: Box::new(found),
            });
        }
        let mut prefix = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&opened, &mut prefix, 0)
            .map_err(|source| io("read", source))?;
        if prefix.starts_with(gguf::MAGIC) {
            return self.add_gguf(index, &opened, file, known);
        }
        let header_len = header_len(&prefix, found.len, path)?;
        let text = read_header(&opened, header_len, path)?;
        let header = parse_header(&text, found.len, path)?;
        let start = data_start(header_len);
        let first_unit = self.units.len();
        for tensor in &header.tensors {
            let bytes = start + tensor.begin..start + tensor.end;
            self.add_tensor(index, &tensor.name, tensor.dtype, bytes, known);
        }
        self.tensors += header.tensors.len();
        self.header_bytes += start;
        self.add_jobs(first_unit);
        Ok(())
    }

    fn add_gguf(
        &mut self,
        index: u32,
        opened: &File,
        file: &PoolFile,
        known: &Known,
    ) -> Result<(), TierError> {
        let header = gguf::read_header(opened, file.identity.len, &file.path)?;
        let start = header.data_start;
        let first_unit = self.units.len();
        for tensor in &header.tensors {
            let bytes = start + tensor.begin..start + tensor.end;
            self.add_tensor(index, &tensor.name, tensor.dtype, bytes, known);
        }
        self.tensors += header.tensors.len();
        self.header_bytes += start.min(file.identity.len);
        self.add_jobs(first_unit);
        Ok(())
    }

    fn add_tensor(
        &mut self,
        file: u32,
        name: &str,
        dtype: Dtype,
        bytes: Range<u64>,
        known: &Known,
    ) {
        let mut push = |range: Range<u64>, purpose| {
            if range.is_empty() {
                return;
            }
            let name = match purpose {
                Use::Weight(id) if range != bytes => format!("{name} ({id})"),
                _ => name.to_owned(),
            };
            let element = (range.start - bytes.start) / dtype.size_bytes() * dtype.block_elements();
            let len = range.end - range.start;
            let extent = Extent { file, offset: range.start, len };
            self.units.push(Unit { name, dtype, extent, element, purpose });
        };
        let mut at = bytes.start;
        for (&(_, offset), &(len, purpose)) in known.range((file, bytes.start)..(file, bytes.end)) {
            push(at..offset, Use::Aside);
            push(offset..offset + len, purpose);
            at = offset + len;
        }
        push(at..bytes.end, Use::Aside);
    }

    /// Groups the units of one file to pieces, small gaps between them (alignment) included; large
    /// units are cut between elements or blocks.
    fn add_jobs(&mut self, first_unit: usize) {
        let mut open: Option<Job> = None;
        for index in first_unit..self.units.len() {
            let Extent { file, offset, len } = self.units[index].extent;
            if let Some(job) = &mut open
                && offset + len - job.bytes.start <= PIECE_BYTES
            {
                job.bytes.end = offset + len;
                job.units.end = index + 1;
                continue;
            }
            self.jobs.extend(open.take());
            let mut start = offset;
            let unit_bytes = self.units[index].dtype.size_bytes();
            let piece = PIECE_BYTES / unit_bytes * unit_bytes;
            while offset + len - start > PIECE_BYTES {
                let bytes = start..start + piece;
                self.jobs.push(Job { file, bytes, units: index..index + 1 });
                start += piece;
            }
            open = Some(Job { file, bytes: start..offset + len, units: index..index + 1 });
        }
        self.jobs.extend(open);
    }

    /// Bytes of all jobs.
    pub(super) fn data_bytes(&self) -> u64 {
        self.jobs.iter().map(|job| job.bytes.end - job.bytes.start).sum()
    }
}

/// Where ranges with a use begin → their length and use.
type Known = BTreeMap<(u32, u64), (u64, Use)>;

fn known_ranges(pool: &Pool) -> Known {
    let mut known = Known::new();
    let mut add = |extent: Extent, purpose| {
        if extent.len > 0 {
            known.insert((extent.file, extent.offset), (extent.len, purpose));
        }
    };
    for (id, expert) in pool.layout().iter() {
        for part in &expert.parts {
            let purpose = match part.role {
                PartRole::Gate | PartRole::Up | PartRole::Down => Use::Weight(id),
                PartRole::GateScale | PartRole::UpScale | PartRole::DownScale => Use::Scale,
            };
            add(part.extent, purpose);
        }
    }
    for shape in pool.weight_shapes() {
        add(shape.extent, Use::Shape(shape.id, shape.role));
    }
    for (name, tensor) in pool.spine() {
        let scale = name.ends_with("_scale_inv") || name.ends_with("_scale");
        add(tensor.extent, if scale { Use::Scale } else { Use::Spine });
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(lens: &[u64]) -> Plan {
        let mut plan = Plan::default();
        let mut offset = 104;
        for &len in lens {
            plan.add_tensor(0, "t", Dtype::F32, offset..offset + len, &Known::new());
            offset += len;
        }
        plan.add_jobs(0);
        plan
    }

    #[test]
    fn jobs_tile_the_units_in_order() {
        for lens in [
            &[4, 8, 12][..],
            &[PIECE_BYTES, 4],
            &[4, PIECE_BYTES],
            &[3 * PIECE_BYTES + 4, 4, 2 * PIECE_BYTES],
            &[0, 0],
        ] {
            let plan = plan(lens);
            let mut at = 104;
            for job in &plan.jobs {
                assert_eq!(job.bytes.start, at);
                assert!(job.bytes.end - at <= PIECE_BYTES && job.bytes.end > at, "{job:?}");
                assert!((job.bytes.start - 104).is_multiple_of(4));
                for (index, unit) in plan.units.iter().enumerate() {
                    let touched =
                        unit.extent.offset < job.bytes.end && unit.extent.end() > job.bytes.start;
                    assert_eq!(touched, job.units.contains(&index), "{job:?} {unit:?}");
                }
                at = job.bytes.end;
            }
            assert_eq!(at, 104 + lens.iter().sum::<u64>());
        }
        assert_eq!(plan(&[4, 8, 12]).jobs.len(), 1, "small tensors share a read");
    }

    #[test]
    fn slices_know_whose_they_are_and_where_they_begin() {
        let id = ExpertId::new(3, 1);
        let known = Known::from([((0, 24), (8, Use::Weight(id)))]);
        let mut plan = Plan::default();
        plan.add_tensor(0, "stack", Dtype::F32, 16..40, &known);
        let seen: Vec<_> =
            plan.units.iter().map(|unit| (unit.element, unit.extent.len, unit.purpose)).collect();
        assert_eq!(seen, [(0, 8, Use::Aside), (2, 8, Use::Weight(id)), (4, 8, Use::Aside)]);
        assert_eq!(plan.units[1].name, format!("stack ({id})"));
        assert_eq!(plan.units[0].name, "stack");
    }
}
