//! The shape of the host, made regular as a machine's file requires.

use latchwork_machine::Place;

/// Pairs of cpus that are measured at each distance.
const PAIRS: usize = 4;

/// The arrangement of the cpus, made regular as a machine's file requires.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) sockets: usize,
    pub(super) caches: usize,
    pub(super) cores: usize,
    pub(super) smt: usize,
    /// Hops between sockets.
    pub(super) hops: Vec<Vec<u8>>,
    /// Whether the sockets differ; the largest one was then used for all.
    pub(super) uneven: bool,
}

impl Shape {
    pub(super) fn of(
        places: &[(usize, Place)],
        distance: impl Fn(u32, u32) -> Option<u32>,
    ) -> Self {
        let socket = |place: &Place| place.socket().unwrap_or(0);
        let mut sockets: Vec<(u32, u32)> =
            places.iter().map(|(_, p)| (socket(p), p.node())).collect();
        sockets.sort_unstable();
        sockets.dedup_by_key(|(socket, _)| *socket);
        // Returns the largest number of `inner` groups in an `outer` group.
        let most = |outer: &dyn Fn(&Place) -> u64, inner: &dyn Fn(&Place, usize) -> u64| {
            let mut all: Vec<_> =
                places.iter().map(|(cpu, p)| (outer(p), inner(p, *cpu))).collect();
            all.sort_unstable();
            all.dedup();
            let sizes: Vec<_> = all.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).collect();
            let (low, high) = (sizes.iter().min(), sizes.iter().max());
            (high.copied().unwrap_or(1), low != high)
        };
        let whole = |place: &Place| u64::from(socket(place));
        let cache = |place: &Place| u64::from(socket(place)) << 32 | u64::from(place.cache());
        let core = |place: &Place| u64::from(place.core());
        let (mut caches, a) = most(&whole, &|place, _| cache(place));
        let (mut cores, b) = most(&cache, &|place, _| core(place));
        let (smt, c) = most(&core, &|_, cpu| cpu as u64);
        if cores == 1 {
            // A cache that no other core shares is not a level.
            (caches, cores) = (1, caches);
        }
        let far = |(a, from): (u32, u32), (b, to): (u32, u32)| match a == b {
            true => 0,
            false => distance(from, to).unwrap_or(20).max(11),
        };
        let mut steps: Vec<u32> =
            sockets.iter().flat_map(|a| sockets.iter().map(move |b| far(*a, *b))).collect();
        steps.sort_unstable();
        steps.dedup();
        let hop = |a, b| steps.iter().position(|step| *step == far(a, b).max(far(b, a)));
        let row = |a: &(u32, u32)| {
            sockets.iter().map(|b| hop(*a, *b).unwrap_or(1).min(8) as u8).collect()
        };
        let hops = sockets.iter().map(row).collect();
        Self { sockets: sockets.len(), caches, cores, smt, hops, uneven: a || b || c }
    }

    pub(super) fn most_hops(&self) -> usize {
        self.hops.iter().flatten().copied().max().unwrap_or(0).into()
    }

    pub(super) fn distances(&self) -> usize {
        1 + usize::from(self.caches > 1) + self.most_hops()
    }

    /// Returns some pairs of cpus of different cores at this distance.
    pub(super) fn pairs(&self, places: &[(usize, Place)], distance: usize) -> Vec<(usize, usize)> {
        let mut sockets: Vec<_> = places.iter().map(|(_, place)| place.socket()).collect();
        sockets.sort_unstable();
        sockets.dedup();
        let number = |place: &Place| sockets.binary_search(&place.socket()).unwrap_or(0);
        let levels = usize::from(self.caches > 1);
        let between = |a: &Place, b: &Place| match self.hops[number(a)][number(b)] {
            0 if levels == 0 || a.cache() == b.cache() => 0,
            0 => 1,
            hops => levels + usize::from(hops),
        };
        let mut found = Vec::new();
        for (at, (a, here)) in places.iter().enumerate() {
            let others = places[at + 1..].iter().filter(|(_, there)| there.core() != here.core());
            found.extend(
                others.filter(|(_, there)| between(here, there) == distance).map(|(b, _)| (*a, *b)),
            );
        }
        // Distributed over the whole machine.
        let step = (found.len() / PAIRS).max(1);
        found.into_iter().step_by(step).take(PAIRS).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns cpus numbered as Linux does: all first hardware threads, then the second ones.
    fn machine(sockets: u32, caches: u32, cores: u32, smt: usize) -> Vec<(usize, Place)> {
        let each = |core: u32| {
            let (socket, cache) = (core / (caches * cores), core / cores * cores);
            Place::new(socket, socket, cache, core)
        };
        let total = sockets * caches * cores;
        let one = |thread: usize| {
            (0..total).map(move |core| (core as usize + thread * total as usize, each(core)))
        };
        (0..smt).flat_map(one).collect()
    }

    #[test]
    fn the_shapes_of_machines() {
        let far = |_, _| Some(21);
        let of = |places: &[(usize, Place)]| {
            let shape = Shape::of(places, far);
            assert!(!shape.uneven, "{shape:?}");
            (shape.sockets, shape.caches, shape.cores, shape.smt)
        };
        assert_eq!(of(&machine(2, 16, 4, 1)), (2, 16, 4, 1));
        assert_eq!(of(&machine(1, 1, 12, 2)), (1, 1, 12, 2));
        assert_eq!(of(&machine(1, 1, 1, 1)), (1, 1, 1, 1));
        // A separate cache for each core is not a level.
        assert_eq!(of(&machine(2, 8, 1, 2)), (2, 1, 8, 2));
        let mut odd = machine(2, 1, 4, 1);
        odd.pop();
        assert!(Shape::of(&odd, far).uneven);
    }

    #[test]
    fn hops_follow_the_kernels_distances() {
        let square = |a: u32, b: u32| Some(if (a + b) % 2 == 1 { 16 } else { 22 });
        let shape = Shape::of(&machine(4, 1, 2, 1), square);
        assert_eq!(shape.hops, [[0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 1], [1, 2, 1, 0]]);
        assert_eq!(shape.distances(), 3);
        let unknown = Shape::of(&machine(2, 2, 2, 1), |_, _| None);
        assert_eq!((unknown.hops.len(), unknown.distances()), (2, 3));
    }

    #[test]
    fn pairs_are_of_two_cores_and_as_far_apart_as_asked_for() {
        let places = machine(2, 2, 2, 2);
        let shape = Shape::of(&places, |_, _| Some(20));
        let at = |cpu: usize| places[cpu].1;
        for distance in 0..shape.distances() {
            let pairs = shape.pairs(&places, distance);
            assert!(!pairs.is_empty() && pairs.len() <= PAIRS);
            for (a, b) in pairs {
                let (a, b) = (at(a), at(b));
                let seen = match (a.socket() == b.socket(), a.cache() == b.cache()) {
                    (true, true) => 0,
                    (true, false) => 1,
                    _ => 2,
                };
                assert!(seen == distance && a.core() != b.core(), "{a:?} {b:?}");
            }
        }
        assert!(
            Shape::of(&machine(1, 1, 1, 2), |_, _| None).pairs(&machine(1, 1, 1, 2), 0).is_empty()
        );
    }
}
