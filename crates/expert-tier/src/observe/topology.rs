use super::numa::NumaNode;
use super::root::SystemRoot;
use serde::Serialize;

/// How an accelerator's memory lies to the host's: the paper's section 8 gives each kind other
/// rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyKind {
    /// No accelerator is seen.
    None,
    /// CPU and accelerator share one memory.
    Unified,
    /// Two memories over a coherent link: the accelerator reads host pages at the link's rate.
    Coherent,
    /// Two memories over PCIe.
    Discrete,
    /// An accelerator is there, and its kind cannot be told from here.
    Unclear,
}

/// The kind, and what shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Topology {
    /// The kind.
    pub kind: TopologyKind,
    /// What was seen, in words.
    pub evidence: String,
    /// PCI addresses of the accelerators.
    pub accelerators: Vec<String>,
}

/// Vendors whose display and processing controllers compute.
const VENDORS: [(&str, &str); 3] = [("0x10de", "NVIDIA"), ("0x1002", "AMD"), ("0x8086", "Intel")];

impl Topology {
    /// Looks at `/sys` and `/proc/cpuinfo`; never fails, what cannot be seen is not there.
    #[must_use]
    pub fn probe(root: &SystemRoot) -> Self {
        let compatible = root.read("/sys/firmware/devicetree/base/compatible").unwrap_or_default();
        if compatible.contains("nvidia,tegra") {
            let evidence = "the device tree names an NVIDIA Tegra, whose GPU shares the memory";
            return Self::of(TopologyKind::Unified, evidence, Vec::new());
        }
        let found = accelerators(root);
        let addresses: Vec<String> = found.iter().map(|(address, _)| address.clone()).collect();
        let Some((first, vendor)) = found.first() else {
            let evidence = "no display or processing controller of NVIDIA, AMD or Intel in \
                            /sys/bus/pci";
            return Self::of(TopologyKind::None, evidence, addresses);
        };
        let (kind, evidence) = match *vendor {
            "NVIDIA" if is_grace(root) => match remote_node(root) {
                Some(node) => (
                    TopologyKind::Coherent,
                    format!(
                        "NVIDIA at {first}, a Grace CPU, and node {} has memory without CPUs",
                        node.node
                    ),
                ),
                None => (
                    TopologyKind::Unclear,
                    format!("NVIDIA at {first} and a Grace CPU, but no memory node of its own"),
                ),
            },
            // An Intel GPU on the root bus is part of the CPU.
            "Intel" if first.contains(":00:") => {
                (TopologyKind::Unified, format!("Intel graphics at {first}, on the root bus"))
            }
            "AMD" => {
                (TopologyKind::Unclear, format!("AMD at {first}: a card, or part of the processor"))
            }
            vendor => (TopologyKind::Discrete, format!("{vendor} at {first}, over PCIe")),
        };
        Self::of(kind, &evidence, addresses)
    }

    fn of(kind: TopologyKind, evidence: &str, accelerators: Vec<String>) -> Self {
        Self { kind, evidence: evidence.to_owned(), accelerators }
    }
}

/// PCI functions of class display (0x03) or processing accelerator (0x12) by those who make
/// accelerators: servers' own display chips and virtual ones only draw. Those of NVIDIA first.
fn accelerators(root: &SystemRoot) -> Vec<(String, &'static str)> {
    const DEVICES: &str = "/sys/bus/pci/devices";
    let Ok(entries) = std::fs::read_dir(root.path(DEVICES)) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let address = entry.file_name().to_string_lossy().into_owned();
        let class = root.read(format!("{DEVICES}/{address}/class")).unwrap_or_default();
        let vendor = root.read(format!("{DEVICES}/{address}/vendor")).unwrap_or_default();
        let known = VENDORS.iter().position(|(number, _)| *number == vendor);
        if let Some(rank) = known
            && (class.starts_with("0x03") || class.starts_with("0x12"))
        {
            found.push((rank, address));
        }
    }
    found.sort();
    found.into_iter().map(|(rank, address)| (address, VENDORS[rank].1)).collect()
}

/// Whether the CPUs are Neoverse V2, which with an NVIDIA accelerator is Grace.
fn is_grace(root: &SystemRoot) -> bool {
    let text = root.read("/proc/cpuinfo").unwrap_or_default();
    text.lines().any(|line| line.starts_with("CPU part") && line.trim().ends_with("0xd4f"))
}

fn remote_node(root: &SystemRoot) -> Option<NumaNode> {
    NumaNode::all(root).ok()?.into_iter().find(NumaNode::is_remote_memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn probe(files: &[(&str, &str)]) -> Topology {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Topology::probe(&SystemRoot::at(dir.path()))
    }

    const NVIDIA: [(&str, &str); 2] = [
        ("sys/bus/pci/devices/0009:01:00.0/class", "0x030200\n"),
        ("sys/bus/pci/devices/0009:01:00.0/vendor", "0x10de\n"),
    ];
    const GRACE: [(&str, &str); 4] = [
        ("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"),
        ("sys/devices/system/node/online", "0-1\n"),
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 480 kB\n"),
        ("sys/devices/system/node/node0/cpulist", "0-71\n"),
    ];

    #[test]
    fn a_machine_without_an_accelerator_says_none() {
        assert_eq!(probe(&[]).kind, TopologyKind::None);
        // A server's display chip and a virtual machine's only draw.
        for vendor in ["0x1a03", "0x1234", "0x1af4"] {
            let found = probe(&[
                ("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n"),
                ("sys/bus/pci/devices/0000:00:02.0/vendor", vendor),
            ]);
            assert_eq!(found.kind, TopologyKind::None, "{vendor}");
            assert!(found.evidence.contains("/sys/bus/pci"));
        }
        // Network controllers of the same vendors are none either.
        let network = probe(&[
            ("sys/bus/pci/devices/0000:00:03.0/class", "0x020000\n"),
            ("sys/bus/pci/devices/0000:00:03.0/vendor", "0x8086\n"),
        ]);
        assert_eq!(network.kind, TopologyKind::None);
    }

    #[test]
    fn cards_links_and_shared_memory() {
        let card = probe(&NVIDIA);
        assert_eq!((card.kind, card.accelerators.len()), (TopologyKind::Discrete, 1));
        assert!(card.evidence.contains("0009:01:00.0"));
        let hbm: Vec<_> = NVIDIA
            .into_iter()
            .chain(GRACE)
            .chain([
                ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 96 kB\n"),
                ("sys/devices/system/node/node1/cpulist", "\n"),
            ])
            .collect();
        let coherent = probe(&hbm);
        assert_eq!(coherent.kind, TopologyKind::Coherent);
        assert!(coherent.evidence.contains("node 1"), "{}", coherent.evidence);
        // The same memory without CPUs beside an x86 processor is not the card's.
        let cxl: Vec<_> = hbm.iter().copied().filter(|(path, _)| *path != "proc/cpuinfo").collect();
        assert_eq!(probe(&cxl).kind, TopologyKind::Discrete);
        let mut no_node: Vec<_> = NVIDIA.into_iter().chain(GRACE).collect();
        no_node[3].1 = "0\n";
        assert_eq!(probe(&no_node).kind, TopologyKind::Unclear);
        let tegra = probe(&[("sys/firmware/devicetree/base/compatible", "nvidia,tegra234\0")]);
        assert_eq!(tegra.kind, TopologyKind::Unified);
        let intel = probe(&[
            ("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n"),
            ("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n"),
        ]);
        assert_eq!(intel.kind, TopologyKind::Unified);
        let amd = probe(&[
            ("sys/bus/pci/devices/0000:c1:00.0/class", "0x038000\n"),
            ("sys/bus/pci/devices/0000:c1:00.0/vendor", "0x1002\n"),
        ]);
        assert_eq!(amd.kind, TopologyKind::Unclear);
    }
}
