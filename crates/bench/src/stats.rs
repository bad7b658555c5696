//! Medians, quartiles, ratios and fairness of small samples.

/// The quantile `q` of `values`, interpolated between neighbours.
///
/// # Panics
///
/// If `values` is empty.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// The median.
///
/// # Panics
///
/// If `values` is empty.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The interquartile range over the median.
///
/// # Panics
///
/// If `values` is empty.
pub fn spread(values: &[f64]) -> f64 {
    let middle = median(values);
    if middle == 0.0 { 0.0 } else { (quantile(values, 0.75) - quantile(values, 0.25)) / middle }
}

/// Quartiles of the ratios of paired numbers.
///
/// A machine that slows down for a while slows both sides of a pair, so the ratio varies less than
/// either number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The lower quartile.
    pub low: f64,
    /// The median: the ratio to report.
    pub mid: f64,
    /// The upper quartile.
    pub high: f64,
    /// Whether all ratios are above 1 or all below.
    pub unanimous: bool,
    /// Number of pairs.
    pub pairs: usize,
}

/// A larger spread makes a comparison invalid, unless all runs agree on which side is faster.
const NOISE: f64 = 0.2;

/// Whether the spread is too large for a comparison and the paired runs disagree on which side is
/// greater. Two runs never count as agreement: they agree by chance half of the time.
///
/// # Panics
///
/// If `values` is empty.
pub fn noisy(values: &[f64], ratio: Option<Ratio>) -> bool {
    spread(values) > NOISE && !ratio.is_some_and(|ratio| ratio.unanimous && ratio.pairs > 2)
}

impl Ratio {
    /// The ratios of `ours` to `theirs`, run by run. `None` without a pair.
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

/// Share of all operations done by the busier half of the threads: 0.5 is fair, 1 means that one
/// half starved.
///
/// With an odd number of threads the middle one counts by half. `None` with fewer than two threads
/// or without operations.
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
