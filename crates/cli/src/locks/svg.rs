//! Draws boxes that wait for each other: black on white, readable without colours.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Context;

use super::layers::Graph;

/// The content of a drawing.
pub(super) struct Drawing {
    title: String,
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

struct Node {
    lines: Vec<String>,
    cycle: bool,
    /// A word at the corner of the box.
    mark: &'static str,
}

struct Edge {
    from: usize,
    to: usize,
    label: String,
    hard: bool,
    cycle: bool,
}

/// Sizes in pixels. Characters have the width of common fixed fonts.
const TEXT: f64 = 12.0;
const SMALL: f64 = 11.0;
const LINE: f64 = 16.0;
const MARGIN: f64 = 24.0;
const HEAD: f64 = 76.0;
/// The distance between two edges at a box.
const PORT: f64 = 17.0;
/// The distance between two layers, without the label.
const RUN: f64 = 80.0;
const THIN: f64 = 1.0;
const HEAVY: f64 = 3.0;

impl Drawing {
    /// Creates an empty drawing.
    pub(super) fn new(title: String) -> Self {
        Self { title, nodes: Vec::new(), edges: Vec::new() }
    }

    /// Adds a box with lines of text; returns its number.
    pub(super) fn node(&mut self, lines: Vec<String>, cycle: bool, mark: &'static str) -> usize {
        self.nodes.push(Node { lines, cycle, mark });
        self.nodes.len() - 1
    }

    /// Adds an arrow from a waiter to its blocker; hard if the blocker holds the object.
    pub(super) fn edge(&mut self, from: usize, to: usize, label: String, hard: bool, cycle: bool) {
        if from != to {
            self.edges.push(Edge { from, to, label, hard, cycle });
        }
    }

    /// Returns the SVG text.
    pub(super) fn draw(&self) -> String {
        let widest = self.nodes.iter().flat_map(|node| &node.lines).map(|l| width(l, TEXT));
        let box_width = widest.fold(90.0, f64::max) + 22.0;
        let labels = self.edges.iter().map(|edge| width(&edge.label, SMALL));
        let run = labels.fold(0.0, f64::max) + RUN;
        let heights: Vec<f64> = (0..self.nodes.len()).map(|at| self.height(at)).collect();
        let edges: Vec<_> = self.edges.iter().map(|edge| (edge.from, edge.to)).collect();
        let layout = Graph { heights: &heights, edges: &edges }.lay_out();
        let left = |layer: usize| MARGIN + layer as f64 * (box_width + run);
        let drawn = left(layout.layers.max(1)) - run + MARGIN;
        let whole = [drawn, width(&self.title, 15.0) + 2.0 * MARGIN, 640.0];
        let size = (whole.into_iter().fold(0.0, f64::max), layout.height + HEAD + MARGIN);
        let mut svg = Svg(String::new());
        svg.open(size, &self.title);
        let ports = self.ports(&layout);
        for ((edge, (route, back)), (start, end)) in
            self.edges.iter().zip(&layout.routes).zip(&ports)
        {
            let last = route.len() - 1;
            let mut points = vec![(left(route[0].0) + box_width, start + HEAD)];
            for (layer, middle) in &route[1..last] {
                points.push((left(*layer), middle + HEAD));
                points.push((left(*layer) + box_width, middle + HEAD));
            }
            points.push((left(route[last].0), end + HEAD));
            svg.edge(edge, &points, *back);
        }
        for (node, ((layer, middle), height)) in
            self.nodes.iter().zip(layout.places.iter().zip(&heights))
        {
            let corner = (left(*layer), middle - height / 2.0 + HEAD);
            svg.node(node, corner, (box_width, *height));
        }
        svg.0.push_str("</svg>\n");
        svg.0
    }

    /// High enough for the labels of all edges of one side.
    fn height(&self, at: usize) -> f64 {
        let count = |which: &dyn Fn(&Edge) -> bool| self.edges.iter().filter(|e| which(e)).count();
        let (out, back) = (count(&|e| e.from == at), count(&|e| e.to == at));
        let cycle = count(&|e| e.cycle && (e.from == at || e.to == at));
        let text = self.nodes[at].lines.len() as f64 * LINE + 14.0;
        text.max((out.max(back) + cycle) as f64 * PORT + 4.0)
    }

    /// The positions at which each edge leaves its left box and meets its right box.
    fn ports(&self, layout: &super::layers::Layout) -> Vec<(f64, f64)> {
        let mut ports = vec![(0.0, 0.0); self.edges.len()];
        for at in 0..self.nodes.len() {
            for right in [false, true] {
                let ends = layout.routes.iter().enumerate().filter(|(edge, (_, back))| {
                    let edge = &self.edges[*edge];
                    // The right end of a backward edge is the waiter.
                    at == if right == *back { edge.from } else { edge.to }
                });
                let beside = |route: &[(usize, f64)]| {
                    let far = route.last().map_or(0.0, |place| place.1);
                    if right { (route[route.len() - 2].1, route[0].1) } else { (route[1].1, far) }
                };
                let mut ends: Vec<_> = ends.map(|(edge, (r, _))| (beside(r), edge)).collect();
                ends.sort_by(|a, b| a.0.0.total_cmp(&b.0.0).then(a.0.1.total_cmp(&b.0.1)));
                let middle = layout.places[at].1;
                let first = middle - (ends.len() as f64 - 1.0) / 2.0 * PORT;
                for (place, (_, edge)) in ends.iter().enumerate() {
                    let y = first + place as f64 * PORT;
                    if right { ports[*edge].1 = y } else { ports[*edge].0 = y }
                }
            }
        }
        ports
    }
}

/// Writes the drawing to a file.
pub(super) fn write(path: &Path, drawing: &Drawing) -> anyhow::Result<()> {
    fs::write(path, drawing.draw()).with_context(|| path.display().to_string())
}

struct Svg(String);

impl Svg {
    fn say(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(text);
        self.0.push('\n');
    }

    fn open(&mut self, (width, height): (f64, f64), title: &str) {
        self.say(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" fill=\"black\">"
        ));
        self.say(format_args!("<title>{}</title>", escaped(title)));
        self.say(format_args!("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"));
        self.text((MARGIN, 28.0), 15.0, true, title);
        let line = |x: f64, dash: &str, width: f64| {
            format!("<path d=\"M{x:.0} 46h36\" stroke=\"black\" stroke-width=\"{width}\"{dash}/>\n")
        };
        for (at, (dash, width, text)) in [
            ("", THIN, "waits for the holder"),
            (DASH, THIN, "for one that asked before"),
            ("", HEAVY, "in a cycle"),
        ]
        .into_iter()
        .enumerate()
        {
            let x = MARGIN + at as f64 * 222.0;
            self.0.push_str(&line(x, dash, width));
            self.text((x + 42.0, 50.0), SMALL, false, text);
        }
    }

    fn text(&mut self, (x, y): (f64, f64), size: f64, bold: bool, text: &str) {
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        self.say(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\"{weight} xml:space=\"preserve\">{}\
             </text>",
            escaped(text)
        ));
    }

    /// A text on white ground that begins or ends there.
    fn label(&mut self, (x, y): (f64, f64), text: &str, bold: bool) {
        let width = width(text, SMALL);
        self.say(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{SMALL}\" fill=\"white\"/>",
            x - 2.0,
            y - SMALL / 2.0,
            width + 4.0,
        ));
        self.text((x, y + 4.0), SMALL, bold, text);
    }

    fn edge(&mut self, edge: &Edge, points: &[(f64, f64)], back: bool) {
        let (first, last) = (points[0], points[points.len() - 1]);
        let (long, wide) = if edge.cycle { (14.0, 6.0) } else { (10.0, 4.0) };
        let text = self::width(&edge.label, SMALL);
        // Straight under its label.
        let run = long + text + 10.0;
        let mut bent = points.to_vec();
        let straight = if back { 0 } else { points.len() - 1 };
        bent[straight].0 += if back { run } else { -run };
        let mut path = format!("M{:.1} {:.1}L{:.1} {1:.1}", first.0, first.1, bent[0].0);
        for (at, pair) in bent.windows(2).enumerate() {
            let ((x, y), (to_x, to_y)) = (pair[0], pair[1]);
            // Straight past a box.
            if at % 2 == 1 {
                let _ = write!(path, "L{to_x:.1} {to_y:.1}");
            } else {
                let bend = (to_x - x) / 2.0;
                let (a, b) = (x + bend, to_x - bend);
                let _ = write!(path, "C{a:.1} {y:.1} {b:.1} {to_y:.1} {to_x:.1} {to_y:.1}");
            }
        }
        let _ = write!(path, "L{:.1} {:.1}", last.0, last.1);
        let width = if edge.cycle { HEAVY } else { THIN };
        let dash = if edge.hard { "" } else { DASH };
        self.say(format_args!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"black\" stroke-width=\"{width}\"{dash}/>"
        ));
        // The arrow head is at the blocker.
        let (tip, sign) = if back { (first, 1.0) } else { (last, -1.0) };
        let base = tip.0 + sign * long;
        self.say(format_args!(
            "<path d=\"M{:.1} {:.1}L{base:.1} {:.1}L{base:.1} {:.1}z\"/>",
            tip.0,
            tip.1,
            tip.1 - wide,
            tip.1 + wide
        ));
        let from = if back { base + 6.0 } else { base - 6.0 - text };
        self.label((from, tip.1), &edge.label, edge.cycle);
    }

    fn node(&mut self, node: &Node, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let stroke = if node.cycle { HEAVY } else { THIN };
        self.say(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"4\" \
             fill=\"white\" stroke=\"black\" stroke-width=\"{stroke}\"/>"
        ));
        let top = y + (height - node.lines.len() as f64 * LINE) / 2.0;
        for (at, line) in node.lines.iter().enumerate() {
            let base = top + at as f64 * LINE + 12.0;
            self.text((x + 11.0, base), TEXT, at == 0, line);
        }
        if !node.mark.is_empty() {
            let from = x + width - 10.0 - self::width(node.mark, SMALL);
            self.label((from, y), node.mark, true);
        }
    }
}

const DASH: &str = " stroke-dasharray=\"5 4\"";

/// The width of a text.
fn width(text: &str, size: f64) -> f64 {
    let cells: usize = text.chars().map(|char| 1 + usize::from(char >= '\u{1100}')).sum();
    cells as f64 * size * 0.605
}

/// Escapes a text for XML.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            char if char.is_control() => out.push('\u{fffd}'),
            char => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::Drawing;

    #[test]
    fn what_is_said_is_in_it_and_no_markup() {
        let mut drawing = Drawing::new("a <b> & \"c\"".to_owned());
        let one = drawing.node(vec!["x<y".to_owned(), "\u{1b}[2J".to_owned()], true, "CYCLE");
        let two = drawing.node(vec!["two".to_owned()], true, "CYCLE");
        drawing.edge(one, two, "held".to_owned(), true, true);
        drawing.edge(two, one, "held".to_owned(), true, true);
        drawing.edge(one, one, "self".to_owned(), true, true);
        let svg = drawing.draw();
        assert!(svg.contains("a &lt;b&gt; &amp; &quot;c&quot;") && svg.contains("x&lt;y"));
        assert!(!svg.contains('\u{1b}') && !svg.contains("NaN") && !svg.contains("self"));
        assert_eq!(svg.matches("CYCLE").count(), 2);
        assert_eq!(svg.matches("fill=\"none\" stroke=\"black\" stroke-width=\"3\"").count(), 2);
    }

    #[test]
    fn nothing_is_drawn_too() {
        assert!(Drawing::new("nobody waits".to_owned()).draw().ends_with("</svg>\n"));
    }
}
