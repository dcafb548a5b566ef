use super::Text;
use crate::error::EngineError;

/// Tokens that may wait for the rest of a character. A character has at most four bytes, so
/// more than this many waiting tokens are not the start of one.
const MAX_WAITING: usize = 8;

/// Decodes token by token: every piece is whole characters, and the pieces together are the
/// text that decoding all tokens at once gives.
///
/// A few tokens before the new ones are decoded again each time, because what a token says
/// can depend on those before it (a leading space, a character begun).
#[derive(Clone, Debug)]
pub struct TextStream<'a> {
    text: &'a Text,
    /// The tokens of the last piece and those that wait.
    ids: Vec<u32>,
    /// How many of `ids` the pieces so far have covered.
    shown: usize,
}

impl<'a> TextStream<'a> {
    pub(super) fn new(text: &'a Text) -> Self {
        Self { text, ids: Vec::new(), shown: 0 }
    }

    /// The text that `id` completes; empty while a character is incomplete.
    ///
    /// # Errors
    /// `token-out-of-range` for an id that the tokenizer does not know.
    pub fn push(&mut self, id: u32) -> Result<String, EngineError> {
        self.ids.push(id);
        let piece = match self.piece() {
            Ok(piece) => piece,
            Err(error) => {
                self.ids.pop();
                return Err(error);
            }
        };
        if piece.ends_with('\u{FFFD}') && self.ids.len() - self.shown < MAX_WAITING {
            return Ok(String::new());
        }
        if !piece.is_empty() {
            self.ids.drain(..self.shown);
            self.shown = self.ids.len();
        }
        Ok(piece)
    }

    /// What still waits when the text ends: characters that never became whole show as U+FFFD.
    ///
    /// # Errors
    /// As [`TextStream::push`].
    pub fn finish(self) -> Result<String, EngineError> {
        self.piece()
    }

    /// What the tokens after the shown ones add to their text.
    fn piece(&self) -> Result<String, EngineError> {
        let before = self.text.decode(&self.ids[..self.shown], true)?;
        let mut all = self.text.decode(&self.ids, true)?;
        let same = before.chars().zip(all.chars()).take_while(|(a, b)| a == b);
        Ok(all.split_off(same.map(|(c, _)| c.len_utf8()).sum()))
    }
}
