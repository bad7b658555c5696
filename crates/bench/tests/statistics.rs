//! The statistics on samples with known answers.

use latchwork_bench::stats::{Ratio, fairness, median, quantile, spread};
use latchwork_bench::{Bound, Figure, Reached, order};

#[test]
fn quantiles_lie_between_neighbours() {
    let values = [40.0, 10.0, 30.0, 20.0];
    assert_eq!(median(&values), 25.0);
    assert_eq!((quantile(&values, 0.0), quantile(&values, 1.0)), (10.0, 40.0));
    assert_eq!(quantile(&values, 0.25), 17.5);
    assert_eq!(median(&[7.0]), 7.0);
}

#[test]
fn the_spread_ignores_one_outlier() {
    assert_eq!(spread(&[100.0, 100.0, 100.0, 100.0, 900.0]), 0.0);
    assert_eq!(spread(&[90.0, 95.0, 100.0, 105.0, 110.0]), 0.1);
    assert_eq!((spread(&[5.0]), spread(&[0.0, 0.0])), (0.0, 0.0));
}

#[test]
fn a_ratio_is_taken_run_by_run() {
    // The machine was half as fast in the second run; ours was twice as fast in both.
    let ratio = Ratio::paired(&[200.0, 100.0, 202.0], &[100.0, 50.0, 101.0]).unwrap();
    assert_eq!((ratio.low, ratio.mid, ratio.high, ratio.pairs), (2.0, 2.0, 2.0, 3));
    assert!(ratio.unanimous);
    assert!(!Ratio::paired(&[1.0, 3.0], &[2.0, 2.0]).unwrap().unanimous);
    assert_eq!(Ratio::paired(&[1.0], &[0.0]), None);
}

#[test]
fn fairness_is_the_busier_halfs_share() {
    assert_eq!(fairness(&[10, 10, 10, 10]), Some(0.5));
    assert_eq!(fairness(&[0, 30, 0, 30]), Some(1.0));
    assert_eq!(fairness(&[1, 3]), Some(0.75));
    assert_eq!(fairness(&[5, 5, 5]), Some(0.5));
    assert_eq!((fairness(&[9]), fairness(&[0, 0]), fairness(&[])), (None, None, None));
}

#[test]
fn the_order_of_subjects_rotates() {
    assert_eq!(order(3, 0), [0, 1, 2]);
    assert_eq!(order(3, 1), [1, 0, 2]);
    assert_eq!(order(3, 2), [2, 0, 1]);
    let mut first: Vec<usize> = (6..12).map(|run| order(6, run)[0]).collect();
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len(), 6);
    assert!(order(0, 5).is_empty());
}

fn reached(bound: Bound, ratios: &[f64]) -> Reached {
    let ones = vec![1.0; ratios.len()];
    Figure::of_ratio(String::new(), bound, Ratio::paired(ratios, &ones).unwrap()).reached
}

#[test]
fn a_figure_is_judged_only_if_the_runs_agree() {
    let limit = Bound::AtMost(0.75);
    assert_eq!(reached(limit, &[0.5, 0.6, 0.7]), Reached::Met);
    assert_eq!(reached(limit, &[0.8, 0.9, 1.2]), Reached::Missed);
    assert_eq!(reached(limit, &[0.5, 0.7, 1.2, 1.3]), Reached::TooNoisy);
    assert_eq!(reached(limit, &[0.74, 0.745, 0.76]), Reached::Met, "close together");
    assert_eq!(reached(limit, &[0.5, 0.5]), Reached::TooNoisy, "too few");
    assert_eq!(reached(Bound::AtLeast(1.0), &[1.0, 1.5, 1.5]), Reached::Met);
}
