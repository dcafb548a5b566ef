//! Progress bars on standard error; none when it is not a terminal (indicatif sees to that).

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over bytes.
pub(crate) fn bytes_bar(total: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    )
    .expect("the template is a constant");
    ProgressBar::new(total).with_style(style).with_message(what)
}

/// A bar over things that are counted.
pub(crate) fn count_bar(total: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}")
        .expect("the template is a constant");
    ProgressBar::new(total).with_style(style).with_message(what)
}
