//! Layout of the boxes of a drawing: layers from left to right, with each waiter left of its
//! blocker except for one edge of each cycle (after Sugiyama, Tagawa and Toda, 1981).

use std::collections::HashMap;

/// The input: the height of each box, and the edges.
pub(super) struct Graph<'a> {
    pub(super) heights: &'a [f64],
    pub(super) edges: &'a [(usize, usize)],
}

/// The positions. Edges that pass a layer also have a position in it.
pub(super) struct Layout {
    /// By box: its layer, and its middle from the top.
    pub(super) places: Vec<(usize, f64)>,
    /// By edge: its positions from the left, and whether it is drawn from right to left.
    pub(super) routes: Vec<(Vec<(usize, f64)>, bool)>,
    pub(super) layers: usize,
    pub(super) height: f64,
}

/// The distance between two boxes, and around an edge that passes.
const GAP: f64 = 26.0;
const PASS: f64 = 16.0;
/// How often the order is improved.
const SWEEPS: usize = 12;

impl Graph<'_> {
    /// Computes the layout.
    pub(super) fn lay_out(&self) -> Layout {
        let back = self.back_edges();
        let layer = self.layers(&back);
        let layers = layer.iter().max().map_or(0, |last| last + 1);
        // Boxes first, then the positions where edges pass a layer.
        let mut heights = self.heights.to_vec();
        let mut of_layer = layer.clone();
        let mut chains = Vec::new();
        for ((from, to), back) in self.edges.iter().zip(&back) {
            let (left, right) = if *back { (*to, *from) } else { (*from, *to) };
            let mut chain = vec![left];
            for between in layer[left] + 1..layer[right] {
                chain.push(heights.len());
                heights.push(PASS);
                of_layer.push(between);
            }
            chain.push(right);
            chains.push(chain);
        }
        let mut rows = vec![Vec::new(); layers];
        of_layer.iter().enumerate().for_each(|(at, layer)| rows[*layer].push(at));
        let mut near: HashMap<usize, [Vec<usize>; 2]> = HashMap::new();
        for pair in chains.iter().flat_map(|chain| chain.windows(2)) {
            near.entry(pair[0]).or_default()[1].push(pair[1]);
            near.entry(pair[1]).or_default()[0].push(pair[0]);
        }
        sort(&mut rows, &near, heights.len());
        let (middles, height) = settle(&rows, &near, &heights);
        let place = |at: usize| (of_layer[at], middles[at]);
        Layout {
            places: (0..self.heights.len()).map(place).collect(),
            routes: chains
                .iter()
                .zip(back)
                .map(|(chain, back)| (chain.iter().map(|at| place(*at)).collect(), back))
                .collect(),
            layers,
            height,
        }
    }

    /// Edges that close a cycle, found depth first.
    fn back_edges(&self) -> Vec<bool> {
        let mut out = vec![Vec::new(); self.heights.len()];
        let mut entered = vec![false; self.heights.len()];
        for (at, (from, to)) in self.edges.iter().enumerate() {
            out[*from].push(at);
            entered[*to] = true;
        }
        let mut back = vec![false; self.edges.len()];
        let mut state = vec![0u8; self.heights.len()];
        // Starting with owners for which none waits.
        let mut starts: Vec<usize> = (0..self.heights.len()).collect();
        starts.sort_by_key(|at| entered[*at]);
        for start in starts {
            if state[start] != 0 {
                continue;
            }
            state[start] = 1;
            let mut path = vec![(start, 0)];
            while let Some((at, next)) = path.last_mut() {
                let Some(edge) = out[*at].get(*next) else {
                    state[*at] = 2;
                    path.pop();
                    continue;
                };
                *next += 1;
                let to = self.edges[*edge].1;
                match state[to] {
                    0 => {
                        state[to] = 1;
                        path.push((to, 0));
                    }
                    1 => back[*edge] = true,
                    _ => {}
                }
            }
        }
        back
    }

    /// Owners that wait for none are in the last layer; all others are left of their blockers.
    fn layers(&self, back: &[bool]) -> Vec<usize> {
        let mut from_right = vec![0usize; self.heights.len()];
        // Each round settles one more layer.
        for _ in 0..self.heights.len() {
            let mut moved = false;
            for ((from, to), back) in self.edges.iter().zip(back) {
                let (left, right) = if *back { (*to, *from) } else { (*from, *to) };
                if from_right[left] <= from_right[right] {
                    from_right[left] = from_right[right] + 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let most = from_right.iter().copied().max().unwrap_or(0);
        from_right.iter().map(|at| most - at).collect()
    }
}

/// The left and right neighbours of each.
type Near = HashMap<usize, [Vec<usize>; 2]>;

/// Sorts each layer so that connected positions are near each other, alternating directions.
fn sort(rows: &mut [Vec<usize>], near: &Near, count: usize) {
    let mut order = vec![0.0; count];
    let number = |row: &[usize], order: &mut [f64]| {
        row.iter().enumerate().for_each(|(place, at)| order[*at] = place as f64);
    };
    rows.iter().for_each(|row| number(row, &mut order));
    let mut best = (crossings(rows, near, &order), rows.to_vec());
    for sweep in 0..SWEEPS {
        let side = sweep % 2;
        let layers: Vec<usize> =
            if side == 0 { (0..rows.len()).collect() } else { (0..rows.len()).rev().collect() };
        for layer in layers {
            let row = &mut rows[layer];
            let key = |at: usize| mean(near, at, side, |other| order[other]).unwrap_or(order[at]);
            let mut keyed: Vec<(f64, usize)> = row.iter().map(|at| (key(*at), *at)).collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            *row = keyed.into_iter().map(|(_, at)| at).collect();
            number(row, &mut order);
        }
        let now = crossings(rows, near, &order);
        if now < best.0 {
            best = (now, rows.to_vec());
        }
    }
    rows.clone_from_slice(&best.1);
}

/// Counts the crossing edges between two layers.
fn crossings(rows: &[Vec<usize>], near: &Near, order: &[f64]) -> usize {
    let mut count = 0;
    for row in rows {
        let mut pairs: Vec<(f64, f64)> = Vec::new();
        for at in row {
            let right = near.get(at).into_iter().flat_map(|near| &near[1]);
            pairs.extend(right.map(|to| (order[*at], order[*to])));
        }
        for (at, a) in pairs.iter().enumerate() {
            count += pairs[..at].iter().filter(|b| (a.0 - b.0) * (a.1 - b.1) < 0.0).count();
        }
    }
    count
}

fn mean(near: &Near, at: usize, side: usize, of: impl Fn(usize) -> f64) -> Option<f64> {
    let others = &near.get(&at)?[side];
    let sum: f64 = others.iter().map(|other| of(*other)).sum();
    (!others.is_empty()).then(|| sum / others.len() as f64)
}

/// The middle of each position from the top, and the total height: near its neighbours, in order,
/// with gaps.
fn settle(rows: &[Vec<usize>], near: &Near, heights: &[f64]) -> (Vec<f64>, f64) {
    let mut middles = vec![0.0; heights.len()];
    for row in rows {
        let mut top = 0.0;
        for at in row {
            middles[*at] = top + heights[*at] / 2.0;
            top += heights[*at] + GAP;
        }
    }
    for sweep in 0..SWEEPS {
        let rows: Vec<&Vec<usize>> =
            if sweep % 2 == 0 { rows.iter().rev().collect() } else { rows.iter().collect() };
        for row in rows {
            let target = |at: usize| {
                let sides = [0, 1].map(|side| mean(near, at, side, |other| middles[other]));
                match sides {
                    [Some(a), Some(b)] => (a + b) / 2.0,
                    [a, b] => a.or(b).unwrap_or(middles[at]),
                }
            };
            let targets: Vec<f64> = row.iter().map(|at| target(*at)).collect();
            // The wanted positions, pushed down where they overlap, and the same pushed up. The
            // mean of both is in order with gaps, because both are.
            let space = |a: usize, b: usize| (heights[row[a]] + heights[row[b]]) / 2.0 + GAP;
            let (mut down, mut up) = (targets.clone(), targets);
            for at in 1..row.len() {
                down[at] = f64::max(down[at], down[at - 1] + space(at - 1, at));
            }
            for at in (1..row.len()).rev() {
                up[at - 1] = f64::min(up[at - 1], up[at] - space(at - 1, at));
            }
            for (place, at) in row.iter().enumerate() {
                middles[*at] = (down[place] + up[place]) / 2.0;
            }
        }
    }
    let edge = |sign: f64| (0..heights.len()).map(move |at| (at, sign));
    let top = edge(-0.5).map(|(at, by)| middles[at] + by * heights[at]).fold(f64::MAX, f64::min);
    middles.iter_mut().for_each(|middle| *middle -= top);
    let bottom = edge(0.5).map(|(at, by)| middles[at] + by * heights[at]).fold(0.0, f64::max);
    (middles, bottom)
}

#[cfg(test)]
mod tests {
    use super::Graph;

    fn overlaps(graph: &Graph<'_>) -> usize {
        let layout = graph.lay_out();
        let mut count = 0;
        for (a, (layer, middle)) in layout.places.iter().enumerate() {
            for (b, other) in layout.places.iter().enumerate().skip(a + 1) {
                let need = (graph.heights[a] + graph.heights[b]) / 2.0;
                count += usize::from(*layer == other.0 && (middle - other.1).abs() < need);
            }
            assert!(middle - graph.heights[a] / 2.0 > -0.001);
            assert!(middle + graph.heights[a] / 2.0 < layout.height + 0.001);
        }
        count
    }

    #[test]
    fn who_waits_is_left_of_whom_it_waits_for() {
        let edges = [(0, 1), (1, 2), (0, 2), (3, 2), (4, 0)];
        let graph = Graph { heights: &[50.0; 5], edges: &edges };
        let layout = graph.lay_out();
        for ((from, to), (route, back)) in edges.iter().zip(&layout.routes) {
            assert!(layout.places[*from].0 < layout.places[*to].0 && !back);
            assert_eq!(route.len(), layout.places[*to].0 - layout.places[*from].0 + 1);
        }
        assert_eq!(layout.layers, 4);
        assert_eq!(overlaps(&graph), 0);
    }

    #[test]
    fn a_cycle_has_one_edge_that_goes_back() {
        for n in [2, 3, 10] {
            let edges: Vec<_> = (0..n).map(|at| (at, (at + 1) % n)).collect();
            let layout = Graph { heights: &vec![40.0; n], edges: &edges }.lay_out();
            assert_eq!(layout.routes.iter().filter(|(_, back)| *back).count(), 1);
            assert_eq!(layout.layers, n);
        }
    }

    #[test]
    fn boxes_do_not_overlap() {
        let mut seed = 7u64;
        for n in 1..40 {
            let mut random = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as usize % n
            };
            let edges: Vec<_> =
                (0..2 * n).map(|_| (random(), random())).filter(|(a, b)| a != b).collect();
            assert_eq!(overlaps(&Graph { heights: &vec![60.0; n], edges: &edges }), 0, "{edges:?}");
        }
    }
}
