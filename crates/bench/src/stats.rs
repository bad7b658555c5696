//! Medians, quartiles, ratios and fairness of few numbers.

/// The value below which the share `q` of `values` lies, between neighbours if need be.
///
/// # Panics
///
/// If there are no values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// The middle value.
///
/// # Panics
///
/// If there are no values.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// How far apart the values lie: the interquartile range over the median.
///
/// # Panics
///
/// If there are no values.
pub fn spread(values: &[f64]) -> f64 {
    let middle = median(values);
    if middle == 0.0 { 0.0 } else { (quantile(values, 0.75) - quantile(values, 0.25)) / middle }
}

/// Ratios of numbers that were taken in pairs: the quartiles of the pairs' own ratios.
///
/// A machine that slows down for a while slows both of a pair, so their ratio moves less than
/// either does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The lower quartile.
    pub low: f64,
    /// The median: the ratio to quote.
    pub mid: f64,
    /// The upper quartile.
    pub high: f64,
    /// Every pair's ratio lies above 1, or every one below.
    pub unanimous: bool,
    /// How many pairs.
    pub pairs: usize,
}

/// Spreads beyond this make a comparison worthless, unless all runs agree on who is faster.
const NOISE: f64 = 0.2;

/// Whether numbers lie so far apart that they do not compare, and the runs, each beside the other
/// of its pair, do not agree on which is greater. Two runs are no agreement: half of the time they
/// are on the same side by chance.
///
/// # Panics
///
/// If there are no values.
pub fn noisy(values: &[f64], ratio: Option<Ratio>) -> bool {
    spread(values) > NOISE && !ratio.is_some_and(|ratio| ratio.unanimous && ratio.pairs > 2)
}

impl Ratio {
    /// Of `ours` over `theirs`, run by run; `None` if there is no pair.
    pub fn paired(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let pairs = ours.iter().zip(theirs).filter(|(_, theirs)| **theirs > 0.0);
        let ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
        let unanimous = ratios.iter().all(|r| *r > 1.0) || ratios.iter().all(|r| *r < 1.0);
        (!ratios.is_empty()).then(|| Self {
            low: quantile(&ratios, 0.25),
            mid: median(&ratios),
            high: quantile(&ratios, 0.75),
            unanimous,
            pairs: ratios.len(),
        })
    }
}

/// The busier half's share of all operations: 0.5 is fair, 1 is one half starved.
///
/// The middle one of an odd number of threads counts by half in either. `None` if there are fewer
/// than two threads, or nobody did anything.
pub fn fairness(per_thread: &[u64]) -> Option<f64> {
    let mut sorted = per_thread.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let total: u64 = sorted.iter().sum();
    if sorted.len() < 2 || total == 0 {
        return None;
    }
    let half = sorted.len() / 2;
    let upper: u64 = sorted[..half].iter().sum();
    let middle = if sorted.len() % 2 == 1 { sorted[half] as f64 / 2.0 } else { 0.0 };
    Some((upper as f64 + middle) / total as f64)
}
