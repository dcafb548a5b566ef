use super::root::{SystemRoot, Unavailable};
use serde::Serialize;

/// Nodes that are looked at; no machine has more.
const MOST: u32 = 1024;

/// One memory node of the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NumaNode {
    /// Its number.
    pub node: u32,
    /// Its CPUs as the kernel lists them, for example `0-7,16`; empty for memory without CPUs
    /// (an accelerator's, or behind CXL).
    pub cpus: String,
    /// Its memory.
    pub memory_bytes: u64,
}

impl NumaNode {
    /// The nodes that are online.
    ///
    /// # Errors
    /// [`Unavailable`] for a kernel without NUMA, or a node that cannot be read.
    pub fn all(root: &SystemRoot) -> Result<Vec<Self>, Unavailable> {
        const NODES: &str = "/sys/devices/system/node";
        let online = root.read(format!("{NODES}/online"))?;
        let numbers = list(&online).ok_or_else(|| {
            Unavailable::new(format!("{NODES}/online: {online:?} is not a list of nodes"))
        })?;
        let node = |node: u32| {
            let table = root.read(format!("{NODES}/node{node}/meminfo"))?;
            // "Node 0 MemTotal:  18704596 kB"
            let total = table.lines().find_map(|line| line.split_once("MemTotal:"));
            let kib = total.and_then(|(_, rest)| rest.trim().strip_suffix("kB"));
            let kib: Option<u64> = kib.and_then(|kib| kib.trim().parse().ok());
            let memory_bytes = kib.and_then(|kib| kib.checked_mul(1024)).ok_or_else(|| {
                Unavailable::new(format!("{NODES}/node{node}/meminfo: no MemTotal"))
            })?;
            let cpus = root.read(format!("{NODES}/node{node}/cpulist"))?;
            Ok(Self { node, cpus, memory_bytes })
        };
        numbers.into_iter().map(node).collect()
    }

    /// Memory that no CPU is near to.
    #[must_use]
    pub fn is_remote_memory(&self) -> bool {
        self.cpus.is_empty() && self.memory_bytes > 0
    }
}

/// `0-2,5` as numbers.
fn list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn nodes_with_and_without_cpus() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join("sys/devices/system/node").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let root = SystemRoot::at(dir.path());
        assert!(NumaNode::all(&root).unwrap_err().reason.contains("online"));
        put("online", "0,2\n");
        put("node0/meminfo", "Node 0 MemTotal:       1000 kB\nNode 0 MemFree: 1 kB\n");
        put("node0/cpulist", "0-71\n");
        put("node2/meminfo", "Node 2 MemTotal:       96 kB\n");
        put("node2/cpulist", "\n");
        let nodes = NumaNode::all(&root).unwrap();
        let wanted = [(0, "0-71", 1000 << 10, false), (2, "", 96 << 10, true)];
        for (node, (number, cpus, memory, remote)) in nodes.iter().zip(wanted) {
            assert_eq!((node.node, node.cpus.as_str(), node.memory_bytes), (number, cpus, memory));
            assert_eq!(node.is_remote_memory(), remote);
        }
        put("node2/meminfo", "nothing");
        assert!(NumaNode::all(&root).unwrap_err().reason.contains("node2"));
        put("online", "0-4000000000\n");
        assert!(NumaNode::all(&root).unwrap_err().reason.contains("not a list"));
    }
}
