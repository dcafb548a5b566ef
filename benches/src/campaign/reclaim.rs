use super::definition::Reclaim;
use expert_tier::observe::SystemRoot;
use std::fs;

const SWITCH: &str = "/sys/kernel/mm/lru_gen/enabled";

/// A choice of reclaim that lasts while this lives; then it is what it was.
#[derive(Debug)]
pub(crate) struct ReclaimSwitch {
    root: SystemRoot,
    before: Option<String>,
}

impl ReclaimSwitch {
    /// Makes the kernel reclaim as `wanted`, or says why it cannot.
    pub(crate) fn set(wanted: Reclaim, root: &SystemRoot) -> Result<Self, String> {
        let found = fs::read_to_string(root.path(SWITCH));
        let on = match wanted {
            Reclaim::AsIs => return Ok(Self { root: root.clone(), before: None }),
            Reclaim::Mglru => true,
            Reclaim::Classic => false,
        };
        let before = match found {
            Ok(text) => text.trim().to_owned(),
            // A kernel without the switch has the lists only.
            Err(_) if !on => return Ok(Self { root: root.clone(), before: None }),
            Err(error) => return Err(format!("this kernel has no MGLRU ({SWITCH}: {error})")),
        };
        let switch = Self { root: root.clone(), before: Some(before) };
        let mode = if on { "y" } else { "n" };
        fs::write(root.path(SWITCH), mode).map_err(|error| format!("{SWITCH}: {error}"))?;
        let now = fs::read_to_string(root.path(SWITCH)).unwrap_or_default();
        // A mask of features; in a fixture tree the word itself.
        let is_on = !["0x0000", "0", "n"].contains(&now.trim());
        if is_on != on {
            return Err(format!("{SWITCH} is {:?} after {mode} was written", now.trim()));
        }
        Ok(switch)
    }
}

impl Drop for ReclaimSwitch {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = fs::write(self.root.path(SWITCH), before)
        {
            eprintln!("warning: {SWITCH} was {before} and cannot be set back: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_set_and_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let root = SystemRoot::at(dir.path());
        assert!(ReclaimSwitch::set(Reclaim::Mglru, &root).unwrap_err().contains("no MGLRU"));
        drop(ReclaimSwitch::set(Reclaim::Classic, &root).unwrap());
        let path = root.path(SWITCH);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "0x0007\n").unwrap();
        drop(ReclaimSwitch::set(Reclaim::AsIs, &root).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "0x0007\n");
        let classic = ReclaimSwitch::set(Reclaim::Classic, &root).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "n");
        drop(classic);
        assert_eq!(fs::read_to_string(&path).unwrap(), "0x0007");
    }
}
