use super::definition::{Definition, Order, Reclaim, WallKind};
use crate::stats::order;
use engine_example::replay::ReplayArm;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// A capacity and what enforces it: what the arms of a comparison share.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) wall: WallKind,
    pub(crate) reclaim: Reclaim,
    /// As the definition writes it.
    pub(crate) capacity: String,
}

/// One run of a campaign.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) place: Place,
    pub(crate) arm: ReplayArm,
    /// From 1.
    pub(crate) repetition: usize,
}

/// All places of a definition.
pub(crate) fn places(definition: &Definition) -> Vec<Place> {
    let mut places = Vec::new();
    for &wall in &definition.walls {
        for &reclaim in &definition.reclaim {
            for capacity in &definition.capacities {
                places.push(Place { wall, reclaim, capacity: capacity.clone() });
            }
        }
    }
    places
}

/// All runs of a definition in the order in which they are made: every cell once a repetition.
/// Arms at one place stay together, for a balloon takes minutes to fill; which place and which arm
/// comes first changes from repetition to repetition.
pub(crate) fn plan(definition: &Definition) -> Vec<Cell> {
    let places = places(definition);
    let mut cells = Vec::new();
    for repetition in 1..=definition.repetitions {
        let turn = |count: usize, salt: u64| match definition.order {
            Order::Interleaved => order(count, repetition - 1, definition.seed ^ salt),
            Order::Random => {
                let seed = definition.seed ^ salt ^ ((repetition as u64) << 32);
                let mut order: Vec<usize> = (0..count).collect();
                order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
                order
            }
        };
        for index in turn(places.len(), 0) {
            let order = turn(definition.arms.len(), 1 + index as u64);
            let mut arms: Vec<_> = order.into_iter().map(|arm| definition.arms[arm]).collect();
            ReplayArm::mapped_first(&mut arms);
            for arm in arms {
                let place = places[index].clone();
                cells.push(Cell { place, arm, repetition });
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::super::definition::tests::SMALL;
    use super::*;
    use std::collections::BTreeSet;

    fn definition(order: &str) -> Definition {
        let text =
            format!("{SMALL}\norder = \"{order}\"").replace("repetitions = 2", "repetitions = 6");
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn every_cell_runs_once_a_repetition_with_its_place_together() {
        for name in ["interleaved", "random"] {
            let definition = definition(name);
            let cells = plan(&definition);
            assert_eq!(cells.len(), 2 * 2 * 6);
            for (index, repetition) in cells.chunks(4).enumerate() {
                assert!(repetition.iter().all(|cell| cell.repetition == index + 1));
                let all: BTreeSet<_> =
                    repetition.iter().map(|cell| (cell.place.clone(), cell.arm)).collect();
                assert_eq!(all.len(), 4);
                assert_eq!(repetition[0].place, repetition[1].place);
            }
            assert_eq!(cells, plan(&definition), "the same again");
            let firsts: BTreeSet<_> =
                cells.chunks(4).map(|cells| (cells[0].place.clone(), cells[0].arm)).collect();
            assert!(firsts.len() > 1, "{name}: always the same one first");
        }
    }

    #[test]
    fn interleaved_repetitions_mirror_each_other() {
        let cells = plan(&definition("interleaved"));
        let key = |cell: &Cell| (cell.place.clone(), cell.arm);
        assert!(cells[..4].iter().map(key).eq(cells[4..8].iter().rev().map(key)));
    }
}
