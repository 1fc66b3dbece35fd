//! Plots as SVG, without a library or a browser: bars, and rooflines.

use std::fmt::Write as _;

use crate::timing::short;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;
const COLOURS: [&str; 8] =
    ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#222222"];

/// A device's limits: bytes and operations per second.
pub(crate) struct Roof {
    pub(crate) name: String,
    pub(crate) memory: f64,
    pub(crate) flops: f64,
}

/// Text that may stand in an element.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn page(height: f64, title: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"22\" font-size=\"14\">{}</text>\n{body}</svg>\n",
        escaped(title)
    )
}

/// Whole powers of ten around positive numbers.
fn decades(numbers: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let logs: Vec<f64> = numbers.filter(|n| n.is_finite() && *n > 0.0).map(f64::log10).collect();
    let least = logs.iter().copied().min_by(f64::total_cmp)?.floor();
    let most = logs.iter().copied().max_by(f64::total_cmp)?.ceil();
    Some((least, most.max(least + 1.0)))
}

/// A horizontal bar for each number, on a logarithmic scale.
pub(crate) fn bars(title: &str, bars: &[(String, f64)]) -> String {
    let Some((from, to)) = decades(bars.iter().map(|(_, value)| *value)) else {
        return page(60.0, title, "");
    };
    // The shortest bar is seen too.
    let from = from - 0.3;
    let x = |value: f64| LEFT + (value.log10() - from) / (to - from) * (WIDTH - LEFT - 90.0);
    let mut body = String::new();
    for (i, (name, value)) in bars.iter().enumerate() {
        let y = 40.0 + 26.0 * i as f64;
        let (width, middle) = (x(*value) - LEFT, y + 13.0);
        let colour = COLOURS[i % COLOURS.len()];
        // Writing to a string cannot fail.
        let _ = write!(
            body,
            "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"18\" fill=\"{colour}\"/>\n\
             <text x=\"{:.1}\" y=\"{middle:.1}\">{}</text>\n",
            LEFT - 8.0,
            escaped(name),
            LEFT + width + 6.0,
            short(*value)
        );
    }
    page(56.0 + 26.0 * bars.len() as f64, title, &body)
}

/// Attainable operations per second over operations to the byte, both logarithmic.
pub(crate) fn roofline(title: &str, roofs: &[Roof]) -> String {
    // Operations to the byte, as powers of ten.
    const FROM: f64 = -2.0;
    const TO: f64 = 4.0;
    let (top, bottom, right) = (40.0, 400.0, WIDTH - 20.0);
    let rates = roofs.iter().flat_map(|roof| [roof.flops, (roof.memory * 10f64.powf(FROM)).min(roof.flops)]);
    let Some((least, most)) = decades(rates) else { return page(60.0, title, "") };
    let x = |intensity: f64| 70.0 + (intensity.log10() - FROM) / (TO - FROM) * (right - 70.0);
    let y = |rate: f64| bottom - (rate.log10() - least) / (most - least) * (bottom - top);
    let mut body = String::new();
    for decade in FROM as i32..=TO as i32 {
        let at = x(10f64.powi(decade));
        let _ = write!(
            body,
            "<path d=\"M{at:.1} {top}V{bottom}\" stroke=\"#ddd\"/>\n\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            bottom + 16.0,
            short(10f64.powi(decade))
        );
    }
    for decade in least as i32..=most as i32 {
        let at = y(10f64.powi(decade));
        let _ = write!(
            body,
            "<path d=\"M70 {at:.1}H{right}\" stroke=\"#ddd\"/>\n\
             <text x=\"64\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            at + 4.0,
            short(10f64.powi(decade - 9))
        );
    }
    let _ = writeln!(
        body,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">operations to the byte; GFLOP/s upwards</text>",
        (70.0 + right) / 2.0,
        bottom + 34.0
    );
    for (i, roof) in roofs.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let (first, last) = (10f64.powf(FROM), 10f64.powf(TO));
        let ridge = (roof.flops / roof.memory).clamp(first, last);
        let rate = |intensity: f64| (roof.memory * intensity).min(roof.flops);
        let points: Vec<String> = [first, ridge, last]
            .iter()
            .map(|intensity| format!("{:.1},{:.1}", x(*intensity), y(rate(*intensity))))
            .collect();
        let label = bottom + 56.0 + 18.0 * i as f64;
        let _ = write!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <rect x=\"70\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\n\
             <text x=\"90\" y=\"{label:.1}\">{}: {} GFLOP/s, {} GB/s</text>\n",
            points.join(" "),
            label - 6.0,
            escaped(&roof.name),
            short(roof.flops / 1e9),
            short(roof.memory / 1e9)
        );
    }
    page(bottom + 60.0 + 18.0 * roofs.len() as f64, title, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_the_logarithms_of_their_numbers() {
        let plot = bars("a < b", &[("fast".into(), 0.1), ("slow & old".into(), 100.0)]);
        assert!(plot.contains("a &lt; b") && plot.contains("slow &amp; old") && !plot.contains("NaN"));
        let widths: Vec<f64> = plot
            .split("height=\"18\"")
            .filter_map(|part| part.rsplit_once("width=\"")?.1.split('"').next()?.parse().ok())
            .collect();
        assert!(widths.len() >= 2 && widths[0] > 0.0 && widths[1] > widths[0], "{widths:?}");
    }

    #[test]
    fn nothing_to_draw_is_an_empty_plot() {
        for plot in [bars("none", &[]), roofline("none", &[]), bars("none", &[("x".into(), f64::NAN)])] {
            assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n") && !plot.contains("NaN"));
        }
    }

    #[test]
    fn a_roof_rises_to_its_ridge_and_is_flat_from_there() {
        let plot = roofline("rates", &[Roof { name: "cpu".into(), memory: 1e10, flops: 1e11 }]);
        let points = plot.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("");
        let heights: Vec<f64> =
            points.split(' ').filter_map(|point| point.split_once(',')?.1.parse().ok()).collect();
        assert!(heights.len() == 3 && heights[0] > heights[1] && heights[1] == heights[2], "{points}");
    }
}
