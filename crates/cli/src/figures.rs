//! The goals of a benchmark, with the measured values.

use std::io::{self, Write};

use comfy_table::{Cell, Color};
use latchwork_bench::{Figure, Reached};

use crate::output;

/// Prints goals and measured values.
pub(crate) fn reached(figures: &[Figure], colour: bool, out: &mut impl Write) -> io::Result<()> {
    let header = ["figures", "to reach", "measured", "quartiles", ""];
    let mut table = output::table(&header, 1..4, colour);
    for figure in figures {
        let (measured, range) = match figure.range {
            Some((low, high)) => {
                (digits(figure.measured), format!("{}..{}", digits(low), digits(high)))
            }
            None => (format!("{:.0}", figure.measured), String::new()),
        };
        let colour = match figure.reached {
            Reached::Met => Color::Green,
            Reached::Missed => Color::Red,
            _ => Color::Yellow,
        };
        table.add_row([
            Cell::new(&figure.what),
            Cell::new(figure.bound),
            Cell::new(measured),
            Cell::new(range),
            Cell::new(figure.reached.name()).fg(colour),
        ]);
    }
    writeln!(out, "\n{table}")
}

/// Formats a number, with decimals where they are significant.
fn digits(value: f64) -> String {
    match value {
        _ if value < 99.995 => format!("{value:.2}"),
        _ if value < 9_999.5 => format!("{value:.0}"),
        // Only a run that is disturbed by other programs gives such numbers.
        _ => format!("{value:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let numbers = [0.237, 99.99, 373.04, 123_456.0];
        assert_eq!(numbers.map(digits), ["0.24", "99.99", "373", "1e5"]);
    }
}
