use super::notice::Notice;

/// Tokens running with the same routes at every layer from which a run is called stale.
/// The longest run in 14,355 tokens of ten real traces is 2.
const STALE_TOKENS: u64 = 8;

/// What routes that do not change for many tokens running are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stale {
    /// A [`Notice::StaleRoutes`]; the rows are used.
    #[default]
    Notice,
    /// An error at the first token that makes the run long.
    Refuse,
}

/// Finds runs of tokens whose routes are the same at every layer.
#[derive(Default)]
pub(super) struct StaleRun {
    routes: Vec<u16>,
    line: u64,
    first_token: u64,
    last_token: u64,
    tokens: u64,
}

impl StaleRun {
    /// Takes the routes of the next token; the run that ended with the one before, if it was
    /// long.
    pub(super) fn next(&mut self, line: u64, token: u64, routes: Vec<u16>) -> Option<Notice> {
        if self.tokens > 0 && self.routes == routes {
            self.last_token = token;
            self.tokens += 1;
            return None;
        }
        let ended = self.end();
        *self = Self { routes, line, first_token: token, last_token: token, tokens: 1 };
        ended
    }

    /// Ends the run.
    pub(super) fn end(&mut self) -> Option<Notice> {
        let Self { line, first_token, last_token, tokens, .. } = std::mem::take(self);
        let long = tokens >= STALE_TOKENS;
        long.then_some(Notice::StaleRoutes { line, first_token, last_token, tokens })
    }

    /// Tokens of the run before its last one, once it is long.
    pub(super) fn stale_for(&self) -> Option<u64> {
        (self.tokens >= STALE_TOKENS).then(|| self.tokens - 1)
    }
}
