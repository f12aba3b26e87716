//! Plots as SVG: lines, steps and bars, with axes. Plain text without scripts, which browsers show as it is.

use super::table::figure;
use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 48.0;
const RIGHT: f64 = 150.0;
/// Colours that people with colour blindness can distinguish (Okabe and Ito), then more of that kind (Tol).
const COLOURS: [&str; 18] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933", "#332288",
    "#882255", "#117733", "#ddcc77", "#88ccee", "#cc6677", "#44aa99", "#aa4499", "#888888", "#663300",
];
/// Lines with colours of the second kind are dashed.
const PLAIN: usize = 8;

fn dashes(i: usize) -> &'static str {
    if i % COLOURS.len() < PLAIN {
        ""
    } else {
        " stroke-dasharray=\"6 3\""
    }
}

/// Points with a name.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// An axis, linear or logarithmic.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.filter(|v| v.is_finite() && (!log || *v > 0.0)) {
            low = low.min(v);
            high = high.max(v);
        }
        if !low.is_finite() {
            (low, high) = if log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if log {
            low = 10_f64.powf(low.log10().floor());
            high = 10_f64.powf(high.log10().ceil()).max(low * 10.0);
        } else {
            low = low.min(0.0);
            high = if high > low { high * 1.05 } else { low + 1.0 };
        }
        Self { low, high, log }
    }
    /// Position on the axis, 0 to 1.
    fn at(&self, v: f64) -> f64 {
        let share = if self.log {
            (v.max(self.low).log10() - self.low.log10()) / (self.high.log10() - self.low.log10())
        } else {
            (v - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let mut all = Vec::new();
            let mut v = self.low;
            while v <= self.high * 1.001 && all.len() < 15 {
                all.push(v);
                v *= 10.0;
            }
            return all;
        }
        (0..=4)
            .map(|i| self.low + (self.high - self.low) * f64::from(i) / 4.0)
            .collect()
    }
}

/// Escapes a text for XML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn short(v: f64) -> String {
    match v {
        v if v >= 1e6 => format!("{}M", figure(v / 1e6)),
        v if v >= 1e4 => format!("{}k", figure(v / 1e3)),
        v if v.fract() == 0.0 => format!("{v:.0}"),
        v => figure(v),
    }
}

fn begin(title: &str, x: &str, y: &str) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n<title>{0}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"18\" \
         font-weight=\"bold\">{0}</text>\n",
        escape(title)
    );
    let (bottom, middle) = (HEIGHT - 10.0, (LEFT + WIDTH - RIGHT) / 2.0);
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">{}</text>\n<text x=\"14\" y=\"{1}\" \
         text-anchor=\"middle\" transform=\"rotate(-90 14 {1})\">{2}</text>",
        escape(x),
        HEIGHT / 2.0,
        escape(y)
    );
    out
}

fn legend(out: &mut String, names: impl Iterator<Item = String>) {
    for (i, name) in names.enumerate().take(18) {
        let y = TOP + 8.0 + i as f64 * 17.0;
        let _ = writeln!(
            out,
            "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            WIDTH - RIGHT + 8.0,
            y - 10.0,
            COLOURS[i % COLOURS.len()],
            WIDTH - RIGHT + 24.0,
            y,
            escape(&name.chars().take(20).collect::<String>())
        );
    }
}

fn x_of(axis: &Axis, v: f64) -> f64 {
    LEFT + axis.at(v) * (WIDTH - LEFT - RIGHT)
}

fn y_of(axis: &Axis, v: f64) -> f64 {
    HEIGHT - BOTTOM - axis.at(v) * (HEIGHT - TOP - BOTTOM)
}

fn y_axis(out: &mut String, axis: &Axis) {
    for tick in axis.ticks() {
        let y = y_of(axis, tick);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"{}\" \
             y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            short(tick)
        );
    }
}

fn x_ticks(out: &mut String, axis: &Axis, ticks: &[f64]) {
    for tick in ticks {
        let x = x_of(axis, *tick);
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#888\"/><text x=\"{x:.1}\" \
             y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 5.0,
            HEIGHT - BOTTOM + 18.0,
            short(*tick)
        );
    }
}

/// Lines with a mark at each point; `log` makes an axis logarithmic. The ticks of x are the points'.
pub(super) fn lines(title: &str, x: &str, y: &str, lines: &[Line], log: (bool, bool)) -> String {
    let points = || lines.iter().flat_map(|l| l.points.iter());
    let x_axis = Axis::of(points().map(|p| p.0), log.0);
    let y_axis_ = Axis::of(points().map(|p| p.1), log.1);
    let mut ticks: Vec<f64> = points().map(|p| p.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    if let [only] = ticks[..] {
        // Lines of one point would be dots one above the other.
        let at_zero = |l: &Line| Line {
            name: l.name.clone(),
            points: l.points.iter().map(|(_, y)| (0.0, *y)).collect(),
        };
        let columns: Vec<Line> = lines.iter().map(at_zero).collect();
        return bars(title, y, &[format!("{} {x}", short(only))], &columns);
    }
    let mut out = begin(title, x, y);
    y_axis(&mut out, &y_axis_);
    if ticks.len() > 8 {
        ticks = x_axis.ticks();
    }
    x_ticks(&mut out, &x_axis, &ticks);
    for (i, line) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let mut path = String::new();
        for (n, (px, py)) in line.points.iter().enumerate() {
            let (sx, sy) = (x_of(&x_axis, *px), y_of(&y_axis_, *py));
            let _ = write!(path, "{}{sx:.1} {sy:.1}", if n == 0 { "M" } else { " L" });
            if line.points.len() <= 12 {
                let _ = writeln!(
                    out,
                    "<circle cx=\"{sx:.1}\" cy=\"{sy:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: {} at {}</title></circle>",
                    escape(&line.name),
                    figure(*py),
                    short(*px)
                );
            }
        }
        let _ = writeln!(
            out,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{}/>",
            dashes(i)
        );
    }
    legend(&mut out, lines.iter().map(|l| l.name.clone()));
    out + "</svg>\n"
}

/// Groups of bars: `groups` are names on the x axis, each line has one value per group (its points' y).
pub(super) fn bars(title: &str, y: &str, groups: &[String], lines: &[Line]) -> String {
    let axis = Axis::of(lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)), false);
    let mut out = begin(title, "", y);
    y_axis(&mut out, &axis);
    let wide = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
    let bar = wide * 0.8 / lines.len().max(1) as f64;
    for (g, name) in groups.iter().enumerate() {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\">{}</text>",
            LEFT + (g as f64 + 0.5) * wide,
            HEIGHT - BOTTOM + 14.0 + if g % 2 == 1 { 12.0 } else { 0.0 },
            escape(name)
        );
        for (i, line) in lines.iter().enumerate() {
            let Some((_, v)) = line.points.iter().find(|(x, _)| *x == g as f64) else {
                continue;
            };
            let top = y_of(&axis, *v);
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{}, {}: \
                 {}</title></rect>",
                LEFT + g as f64 * wide + wide * 0.1 + i as f64 * bar,
                bar * 0.95,
                HEIGHT - BOTTOM - top,
                COLOURS[i % COLOURS.len()],
                escape(&line.name),
                escape(name),
                figure(*v)
            );
        }
    }
    legend(&mut out, lines.iter().map(|l| l.name.clone()));
    out + "</svg>\n"
}
