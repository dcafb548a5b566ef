use serde::Serialize;
use std::fmt;

/// Something a person should know although the work goes on: the library never prints,
/// it hands these to the program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Notice {
    /// Warnings count as such (`tier` prints them once); the rest is information.
    pub warning: bool,
    /// One line that names the thing and the numbers.
    pub text: String,
}

impl Notice {
    /// A warning.
    pub fn warning(text: impl Into<String>) -> Self {
        Self { warning: true, text: text.into() }
    }

    /// A fact worth a line.
    pub fn info(text: impl Into<String>) -> Self {
        Self { warning: false, text: text.into() }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
