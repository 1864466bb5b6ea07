//! Draws the requests that three algorithms admit around a window boundary: `cargo run --example boundary >
//! docs/boundary.svg`.

use std::error::Error;
use std::fmt::Write;

use slidegate::{Limiter, ManualClock};

const ROWS: [(&str, &str); 3] = [
    ("fixed-window", "100/1m fixed-window"),
    ("sliding-window", "100/1m"),
    ("strict-window", "100/1m strict-window"),
];
/// The window ends at second 60. Demand starts ten seconds earlier and continues.
const SECONDS: std::ops::Range<u64> = 45..125;
const DEMAND_FROM: u64 = 50;
const DEMAND_PER_SECOND: u64 = 10;

const LEFT: u64 = 110;
const BAR: u64 = 7;
const ROW: u64 = 90;
const UNIT: u64 = 6;

fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", picture()?);
    Ok(())
}

/// Returns the number of admitted requests per second.
fn admitted(quota: &str) -> Result<Vec<u64>, Box<dyn Error>> {
    let clock = ManualClock::at(0);
    let limiter = Limiter::builder("demo").quotas([quota]).max_keys(1).clock(clock.clone()).in_memory()?;
    let mut seconds = Vec::new();
    for second in SECONDS {
        let mut count = 0;
        for request in 0..DEMAND_PER_SECOND {
            clock.set(second * 1000 + request * 1000 / DEMAND_PER_SECOND);
            let is_requested = second >= DEMAND_FROM;
            count += u64::from(is_requested && limiter.check_now("client")?.is_allowed());
        }
        seconds.push(count);
    }
    Ok(seconds)
}

fn picture() -> Result<String, Box<dyn Error>> {
    let seconds = SECONDS.end - SECONDS.start;
    let (width, height) = (LEFT + seconds * BAR + 20, ROW * 3 + 40);
    let mut svg = String::new();
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">"
    )?;
    writeln!(svg, "<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>")?;
    for (row, (name, quota)) in (0..).zip(ROWS) {
        let base = ROW * (row + 1);
        let counts = admitted(quota)?;
        let from = usize::try_from(DEMAND_FROM - SECONDS.start)?;
        let burst: u64 = counts[from..from + 20].iter().sum();
        writeln!(svg, "<text x=\"8\" y=\"{}\" font-weight=\"bold\">{name}</text>", base - 40)?;
        writeln!(svg, "<text x=\"8\" y=\"{}\" fill=\"#555\">{burst} in 20 s</text>", base - 22)?;
        for (second, count) in (0..).zip(counts).filter(|(_, count)| *count > 0) {
            let (x, tall) = (LEFT + second * BAR, count * UNIT);
            let colour =
                if row == 0 && (60..70).contains(&(second + SECONDS.start)) { "#c0392b" } else { "#2471a3" };
            writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{}\" width=\"{}\" height=\"{tall}\" fill=\"{colour}\"/>",
                base - tall,
                BAR - 1
            )?;
        }
        writeln!(svg, "<path d=\"M{LEFT} {base}H{}\" stroke=\"#999\"/>", LEFT + seconds * BAR)?;
    }
    let bottom = ROW * 3;
    for second in [60, 120] {
        let x = LEFT + (second - SECONDS.start) * BAR;
        writeln!(svg, "<path d=\"M{x} 15V{bottom}\" stroke=\"#999\" stroke-dasharray=\"4 3\"/>")?;
        writeln!(
            svg,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}:00</text>",
            bottom + 18,
            second / 60
        )?;
    }
    writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">admitted in each second, limit 100 a minute, ten \
         requests a second from 0:50 on</text>",
        LEFT + seconds * BAR / 2,
        bottom + 35
    )?;
    writeln!(svg, "</svg>")?;
    Ok(svg)
}

#[cfg(test)]
mod tests {
    /// The picture in the documentation shows the library's actual decisions.
    #[test]
    fn the_picture_matches_the_library() {
        let kept = include_str!("../../../docs/boundary.svg");
        assert_eq!(
            super::picture().unwrap(),
            kept,
            "the picture is outdated; run: cargo run --example boundary > docs/boundary.svg"
        );
    }
}
