//! The argument of `--threads`.

/// The most threads of a run, limited by the host's memory.
pub(super) const MAX: usize = 8192;

/// Numbers of threads, ascending, without duplicates.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Threads(pub(super) Vec<usize>);

impl Threads {
    /// Returns 1, 2, 4 and so on below `last`, and `last`.
    pub(super) fn up_to(last: usize) -> Self {
        let mut all = Vec::new();
        double(1, last, &mut all);
        Self(all)
    }
}

fn double(from: usize, to: usize, all: &mut Vec<usize>) {
    let doubled = std::iter::successors(Some(from), |n| Some(n * 2)).take_while(|n| *n < to);
    all.extend(doubled.chain([to]));
}

/// Parses `1,3,8`, `1..192` and `1,2,4,..192`, where `..192` doubles from the number before it.
pub(super) fn parse(text: &str) -> Result<Threads, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let Some((from, to)) = part.split_once("..") else {
            all.push(number(part)?);
            continue;
        };
        let from = match (from.trim(), all.last()) {
            ("", Some(last)) => *last,
            ("", None) => return Err(format!("{part:?} begins nowhere: write 1{part}")),
            (from, _) => number(from)?,
        };
        let to = number(to)?;
        if to < from {
            return Err(format!("{part:?} ends at {to}, below {from}"));
        }
        double(from, to, &mut all);
    }
    all.sort_unstable();
    all.dedup();
    Ok(Threads(all))
}

fn number(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(n) if (1..=MAX).contains(&n) => Ok(n),
        _ => Err(format!("{text:?} is no number from 1 to {MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_doubling_ranges() {
        let read = |text| parse(text).unwrap().0;
        assert_eq!(read("1,3,8"), [1, 3, 8]);
        assert_eq!(read("1..192"), [1, 2, 4, 8, 16, 32, 64, 128, 192]);
        assert_eq!(read("1,2,4,..192"), read("1..192"));
        assert_eq!(read("10..80,3,80"), [3, 10, 20, 40, 80]);
        assert_eq!(read("4..4"), [4]);
        assert_eq!(Threads::up_to(24).0, read("1..24"));
    }

    #[test]
    fn what_is_no_number_of_threads() {
        for wrong in ["", "0", "-1", "x", "1,", "..8", "8..4", "1..", "9999999999", "1...4"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
