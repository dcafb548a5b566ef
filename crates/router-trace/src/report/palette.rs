//! Colours that read on white and on near-black paper, and text that is safe to draw.

/// Red, green, blue.
pub(super) type Colour = (u8, u8, u8);

/// Axes, grid and text. A page's style sheet replaces it for text.
pub(super) const NEUTRAL: Colour = (0x7c, 0x82, 0x8a);

/// Series in their order; more series than colours begin again, with other dots.
const SERIES: [Colour; 8] = [
    (0x2f, 0x7f, 0xd0), // blue
    (0xd0, 0x6a, 0x1a), // orange
    (0x1f, 0x96, 0x6a), // green
    (0xc2, 0x4f, 0xa0), // magenta
    (0x8a, 0x80, 0x1c), // olive
    (0x86, 0x6c, 0xd6), // violet
    (0xd2, 0x4d, 0x4d), // red
    (0x1f, 0x90, 0xa0), // teal
];

pub(super) fn series(at: usize) -> Colour {
    SERIES[at % SERIES.len()]
}

/// How often the colours have begun again before this series.
pub(super) fn round(at: usize) -> usize {
    at / SERIES.len()
}

/// Text as it is drawn: at most `most` characters, the rest an ellipsis; characters that
/// XML does not allow (control characters) as the replacement character.
pub(super) fn clean(text: &str, most: usize) -> String {
    let plain =
        |c: char| if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' { '\u{fffd}' } else { c };
    let mut clean: String = text.chars().take(most).map(plain).collect();
    if text.chars().nth(most).is_some() {
        clean.pop();
        clean.push('…');
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance and contrast ratio of the Web Content Accessibility Guidelines 2.1.
    fn contrast(a: Colour, b: Colour) -> f64 {
        let luminance = |colour: Colour| {
            let linear = |byte: u8| {
                let c = f64::from(byte) / 255.0;
                if c <= 0.040_45 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * linear(colour.0) + 0.7152 * linear(colour.1) + 0.0722 * linear(colour.2)
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn every_colour_reads_on_light_and_dark() {
        for colour in SERIES.into_iter().chain([NEUTRAL]) {
            for paper in [(0xff, 0xff, 0xff), (0x14, 0x17, 0x1a)] {
                let ratio = contrast(colour, paper);
                assert!(ratio >= 3.0, "{colour:x?} on {paper:x?}: {ratio:.2}");
            }
        }
    }

    #[test]
    fn clean_text_is_short_and_drawable() {
        assert_eq!(clean("a\0b\n<", 10), "a\u{fffd}b\u{fffd}<");
        assert_eq!(clean("abcdef", 4), "abc…");
        assert_eq!(clean("äöü", 3), "äöü");
    }
}
