use super::ranked::Score;
use super::{Moment, Places, Ranked};
use router_trace::Route;

/// Followers that are counted of one expert, at most.
const MAX_FOLLOWERS: usize = 48;
/// Choices of one expert after which what followed it counts half.
const HALVE_AT: u16 = 1 << 12;

/// Which experts follow which: counts from the experts of a layer to those that the layer `depth`
/// later chose for the same token (the next token where the model ends), learnt as they come.
///
/// Of each expert the most frequent followers are kept by the space-saving algorithm (Metwally,
/// Agrawal and El Abbadi 2005): a count is too high by at most what the smallest kept count is.
/// The score of an expert is how much likelier the route at hand makes it than chance does.
#[derive(Clone, Debug)]
pub struct Transition {
    places: Places,
    depth: usize,
    /// The last route seen at each place.
    routes: Vec<Option<Route>>,
    /// `[places, experts, slots]`: what followed an expert of that place, the most frequent first.
    followers: Vec<Follower>,
    /// `[places, experts]`: how often it was chosen while somebody counted.
    chosen: Vec<u16>,
    slots: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Follower {
    expert: u16,
    /// 0 for a free slot.
    count: u16,
}

impl Transition {
    /// The score alone, for a blend.
    #[must_use]
    pub fn score(places: &Places, depth: usize) -> Self {
        let experts = places.len() * places.n_experts();
        let slots = places.n_experts().clamp(1, MAX_FOLLOWERS);
        Self {
            places: places.clone(),
            depth,
            routes: vec![None; places.len()],
            followers: vec![Follower::default(); experts * slots],
            chosen: vec![0; experts],
            slots,
        }
    }

    /// The predictor.
    #[must_use]
    pub fn predictor(places: &Places, depth: usize) -> Ranked<Self> {
        Ranked::new(Self::score(places, depth), places)
    }

    /// Bytes of its counts: they do not grow.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(self.followers.as_slice()) + size_of_val(self.chosen.as_slice())
    }

    fn count(&mut self, place: usize, from: u16, to: &Route) {
        if usize::from(from) >= self.places.n_experts() {
            return;
        }
        let at = place * self.places.n_experts() + usize::from(from);
        let slots = &mut self.followers[at * self.slots..][..self.slots];
        self.chosen[at] += 1;
        for &expert in to.experts() {
            let known = slots.iter().position(|slot| slot.expert == expert && slot.count > 0);
            // The last is the rarest, or free: its count is the newcomer's allowance for the past.
            let mut place = known.unwrap_or(slots.len() - 1);
            slots[place] = Follower { expert, count: slots[place].count + 1 };
            while place > 0 && slots[place - 1].count < slots[place].count {
                slots.swap(place - 1, place);
                place -= 1;
            }
        }
        if self.chosen[at] == HALVE_AT {
            self.chosen[at] /= 2;
            slots.iter_mut().for_each(|slot| slot.count /= 2);
        }
    }
}

impl Score for Transition {
    fn name(&self) -> &'static str {
        "transition"
    }

    /// `mean over the route's experts of count / chosen, over chance, less 1`.
    fn score(&mut self, place: usize, moment: &Moment<'_>, scores: &mut Vec<f32>) -> bool {
        let n_experts = self.places.n_experts();
        scores.clear();
        scores.resize(n_experts, -1.0);
        let source = self.places.behind(place, self.depth);
        let route = moment.route.experts();
        let over_chance = n_experts as f32 / (self.places.top_k() * route.len().max(1)) as f32;
        let mut known = false;
        for &from in route.iter().filter(|&&from| usize::from(from) < n_experts) {
            let at = source * n_experts + usize::from(from);
            let weight = over_chance / f32::from(self.chosen[at].max(1));
            let followers = &self.followers[at * self.slots..][..self.slots];
            for slot in followers.iter().take_while(|slot| slot.count > 0) {
                if let Some(score) = scores.get_mut(usize::from(slot.expert)) {
                    *score += f32::from(slot.count) * weight;
                    known = true;
                }
            }
        }
        known
    }

    fn learn(&mut self, place: usize, truth: &Route, _scored: bool) {
        let source = self.places.behind(place, self.depth);
        if let Some(before) = self.routes[source] {
            for &from in before.experts() {
                self.count(source, from, truth);
            }
        }
        self.routes[place] = Some(*truth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use router_trace::ModelShape;
    use std::collections::HashMap;

    fn places(n_experts: u16) -> Places {
        Places::new(&ModelShape { moe_layers: vec![0, 4, 9], n_experts, top_k: 2 })
    }

    fn scores(transition: &mut Transition, place: usize, route: &Route) -> Vec<f32> {
        let target = transition.places.layer(place);
        let moment = Moment { step: 0, target, route, logits: &[] };
        let mut scores = Vec::new();
        transition.score(place, &moment, &mut scores);
        scores
    }

    proptest! {
        #[test]
        fn scores_are_those_of_plain_counts_where_all_followers_fit(
            routes in prop::collection::vec(
                prop::sample::subsequence((0_u16..12).collect::<Vec<_>>(), 2), 1..60,
            ),
            depth in 1_usize..5,
        ) {
            let places = places(12);
            let mut transition = Transition::score(&places, depth);
            // Routes by position: layer after layer, token after token.
            let mut counts: HashMap<(usize, u16, u16), f32> = HashMap::new();
            let mut chosen: HashMap<(usize, u16), f32> = HashMap::new();
            let distance = if depth % 3 == 0 { 3 } else { depth % 3 };
            for (at, to) in routes.iter().enumerate() {
                transition.learn(at % 3, &Route::new(places.layer(at % 3), to).unwrap(), false);
                let Some(from) = at.checked_sub(distance) else { continue };
                for &i in &routes[from] {
                    *chosen.entry((from % 3, i)).or_default() += 1.0;
                    to.iter().for_each(|&j| *counts.entry((from % 3, i, j)).or_default() += 1.0);
                }
            }
            let last = routes.len() - 1;
            let route = Route::new(places.layer(last % 3), &routes[last]).unwrap();
            let target = (last + depth) % 3;
            let found = scores(&mut transition, target, &route);
            for j in 0..12_u16 {
                let share = |&i: &u16| {
                    let count = counts.get(&(last % 3, i, j)).copied().unwrap_or(0.0);
                    count / chosen.get(&(last % 3, i)).copied().unwrap_or(1.0)
                };
                let mean = routes[last].iter().map(share).sum::<f32>() / 2.0;
                let lift = mean / (2.0 / 12.0) - 1.0;
                prop_assert!((found[usize::from(j)] - lift).abs() < 1e-4, "{found:?} {j}: {lift}");
            }
        }

        #[test]
        fn a_full_table_errs_by_no_more_than_its_smallest_count(
            followers in prop::collection::vec(0_u16..100, 1..400),
        ) {
            let mut transition = Transition::score(&places(100), 1);
            let mut naive: HashMap<u16, u16> = HashMap::new();
            for &expert in &followers {
                transition.count(0, 3, &Route::new(4, &[expert]).unwrap());
                *naive.entry(expert).or_default() += 1;
            }
            let slots = &transition.followers[3 * MAX_FOLLOWERS..][..MAX_FOLLOWERS];
            let least = slots.iter().map(|slot| slot.count).min().unwrap();
            for (expert, count) in naive {
                match slots.iter().find(|slot| slot.expert == expert && slot.count > 0) {
                    Some(slot) => prop_assert!((count..=count + least).contains(&slot.count)),
                    None => prop_assert!(count <= least),
                }
            }
        }
    }

    #[test]
    fn counts_age_and_memory_does_not_grow() {
        let mut transition = Transition::score(&places(100), 1);
        let bytes = transition.bytes();
        assert_eq!(bytes, 3 * 100 * (MAX_FOLLOWERS * 4 + 2));
        for token in 0..3 * HALVE_AT {
            // The habit changes half way.
            let to = if token < HALVE_AT { 7 } else { 8 };
            transition.learn(0, &Route::new(0, &[1, 2]).unwrap(), false);
            transition.learn(1, &Route::new(4, &[to, 9]).unwrap(), false);
        }
        let found = scores(&mut transition, 1, &Route::new(0, &[1, 2]).unwrap());
        assert!(found[8] > 30.0 && found[8] > 2.0 * found[7], "{} {}", found[8], found[7]);
        assert_eq!(transition.bytes(), bytes);
    }
}
