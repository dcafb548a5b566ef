//! Ends of experts that do not fill their last 2 MiB window.
//!
//! Where the rest of that window is a hole of the file (a packed pool), the kernel can hold the
//! end in a 2 MiB folio without reading a byte more; the hole costs memory only. With 4 KiB
//! folios instead, an expert of 4.5 MiB took 3 % longer to read when warm. So: whole windows
//! where the pool with its holes fits into memory, exact pages where every page counts.

use crate::notice::Notice;
use crate::observe::{MemoryLimits, SystemRoot};
use crate::pool::map::HUGE_BYTES;
use crate::pool::{Extent, Pool};
use std::os::unix::fs::MetadataExt;

/// Share of the free memory that a pool with its holes may take: the rest is for others.
const SHARE: (u64, u64) = (3, 4);

/// Whether ends are brought in as whole windows, as `asked` or as fits here; `notices` hears why
/// a pool that is laid out for it does without.
pub(super) fn choose(pool: &Pool, asked: Option<bool>, notices: &mut Vec<Notice>) -> bool {
    if let Some(asked) = asked {
        return asked;
    }
    let layout = pool.layout();
    let mut extents: Vec<Extent> =
        layout.iter().flat_map(|(_, expert)| expert.extents.iter()).copied().collect();
    extents.sort_unstable();
    if !apart(&extents) {
        return false;
    }
    let bytes = layout.total_bytes();
    let windows: u64 = extents.iter().map(|extent| extent.len.next_multiple_of(HUGE_BYTES)).sum();
    let room = room_bytes(&SystemRoot::default()).unwrap_or(0) / SHARE.1 * SHARE.0;
    let why = if windows > room {
        format!("with the rests it takes {windows} bytes and {room} may be used")
    } else if sparse(pool, &extents) {
        return true;
    } else {
        "the rests are no holes of the file (a copy wrote them out)".to_owned()
    };
    if windows > bytes {
        let text = format!("ends of experts lie in 4 KiB folios, not in 2 MiB ones: {why}");
        notices.push(Notice::info(text));
    }
    false
}

/// Whether every expert starts at a window in which no other's bytes lie.
fn apart(sorted: &[Extent]) -> bool {
    let aligned = sorted.iter().all(|extent| extent.offset.is_multiple_of(HUGE_BYTES));
    aligned
        && sorted.windows(2).all(|pair| {
            let end = pair[0].end().next_multiple_of(HUGE_BYTES);
            pair[0].file != pair[1].file || end <= pair[1].offset
        })
}

/// Whether the files take no more disk than the experts' bytes do (and a little for their index):
/// a copy that wrote the holes out would be read with them.
fn sparse(pool: &Pool, extents: &[Extent]) -> bool {
    (0_u32..).zip(pool.files()).all(|(index, file)| {
        let ours = extents.iter().filter(|extent| extent.file == index);
        let bytes: u64 = ours.map(|extent| extent.len).sum();
        // 512 is the unit of `st_blocks`, whatever the file system's block.
        let disk = std::fs::metadata(&file.path).map(|metadata| metadata.blocks() * 512);
        bytes == 0 || disk.is_ok_and(|disk| disk <= bytes + bytes / 64 + HUGE_BYTES)
    })
}

/// Memory that a page cache may still take: the machine's, or the control group's if that is
/// less.
fn room_bytes(root: &SystemRoot) -> Option<u64> {
    let machine = root.meminfo_bytes("MemAvailable")?;
    Some(MemoryLimits::read(root).headroom_bytes().map_or(machine, |group| group.min(machine)))
}
