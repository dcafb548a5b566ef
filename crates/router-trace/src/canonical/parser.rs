use super::dry_run::FirstPass;
use super::notice::Notice;
use super::pass::{Entry, Pass, Width};
use super::record::{Record, Records, Rows};
use super::stale::{Stale, StaleRun};
use super::{CanonicalCounts, CanonicalOptions};
use crate::error::TraceError;
use crate::format::jsonl::MAX_TOKENS_PER_RECORD;
use crate::ids::ModelShape;
use crate::pass::{LayerPass, PassInfo};
use crate::route::{PassKind, Phase};
use crate::row_fault::RowFault;
use std::collections::VecDeque;

/// Notices kept; more are only counted.
const MAX_NOTICES: usize = 64;
/// The id that other engines pad with.
const PADDING: i64 = -1;

/// Types the records of a foreign trace, in memory for one iteration.
pub(crate) struct Canonical<S> {
    source: S,
    shape: ModelShape,
    options: CanonicalOptions,
    /// The iteration that rows are added to: its pass, and the one that runs again.
    open: [Pass; 2],
    /// The step that it names, or the number of the pass.
    token: u64,
    numbered: bool,
    /// The first step that the file names, and whether none is missing since.
    first_step: Option<u64>,
    /// A pass of several tokens whose drafts are accepted unless the next one repeats it.
    held: Option<(u64, Pass)>,
    ready: VecDeque<LayerPass>,
    seen_first: bool,
    next_step: u64,
    next_position: u64,
    stale: StaleRun,
    counts: CanonicalCounts,
    notices: Vec<Notice>,
    over: bool,
}

impl<S: Records> Canonical<S> {
    pub(crate) fn new(source: S, shape: ModelShape, options: CanonicalOptions) -> Self {
        let layers = shape.moe_layers.len();
        Self {
            source,
            options,
            open: [Pass::new(layers), Pass::new(layers)],
            shape,
            token: 0,
            numbered: false,
            first_step: None,
            held: None,
            ready: VecDeque::new(),
            seen_first: false,
            next_step: 0,
            next_position: 0,
            stale: StaleRun::default(),
            counts: CanonicalCounts::default(),
            notices: Vec::new(),
            over: false,
        }
    }

    /// Counts up to here; whole once the iterator is over.
    pub(crate) fn counts(&self) -> CanonicalCounts {
        self.counts
    }

    pub(crate) fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// What the first pass of the trace routed; `None` in a trace without rows.
    pub(crate) fn first_pass(mut self) -> Result<Option<FirstPass>, TraceError> {
        while let Some(record) = self.next_record()? {
            if self.ends_iteration(&record) {
                break;
            }
            self.add(&record)?;
        }
        let pass = &self.open[0];
        if pass.is_empty() {
            return Ok(None);
        }
        pass.width(self.token, &self.shape, self.options.max_draft)?;
        Ok(Some(FirstPass::of(pass)))
    }

    fn next_pass(&mut self) -> Result<Option<LayerPass>, TraceError> {
        loop {
            if let Some(pass) = self.ready.pop_front() {
                return Ok(Some(pass));
            }
            if self.over {
                return Ok(None);
            }
            match self.next_record()? {
                Some(record) => {
                    if self.ends_iteration(&record) {
                        self.close()?;
                    }
                    self.add(&record)?;
                }
                None => self.finish()?,
            }
        }
    }

    /// The next record of a layer that is not skipped.
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        while let Some(record) = self.source.next_record()? {
            self.counts.records += 1;
            if self.options.skip_layers.iter().all(|&layer| u64::from(layer) != record.layer) {
                return Ok(Some(record));
            }
            self.counts.skipped_records += 1;
        }
        Ok(None)
    }

    /// Whether the record begins a new iteration.
    fn ends_iteration(&self, record: &Record) -> bool {
        let Some(last) = self.open[0].last_place() else { return false };
        match record.step {
            Some(step) => step != self.token,
            None => self.place(record.layer).is_some_and(|place| place <= last),
        }
    }

    fn place(&self, layer: u64) -> Option<usize> {
        let layer = u16::try_from(layer).ok()?;
        self.shape.moe_layers.binary_search(&layer).ok()
    }

    /// Checks a record and adds it to the open iteration.
    fn add(&mut self, record: &Record) -> Result<(), TraceError> {
        let line = record.line;
        let Some(place) = self.place(record.layer) else {
            let known = self.shape.moe_layers.len();
            return Err(TraceError::UnknownLayer { line, layer: record.layer, known });
        };
        let layer = self.shape.moe_layers[place];
        if let Some(step) = record.step {
            self.enter_step(line, step, layer)?;
        }
        let fail = |fault| TraceError::Row { line, token: self.token, layer, fault };
        let second = self.open[0].has(place);
        if second && (self.open[1].has(place) || !self.source.may_run_again()) {
            return Err(fail(RowFault::Repeated));
        }
        let (experts, padding) = self.check_routes(record, layer)?;
        self.counts.padding_rows += padding;
        let top_k = self.shape.top_k;
        let most = self.options.max_draft;
        let entry = Entry::new(line, record.position, top_k, experts.clone(), most);
        self.open[usize::from(second)].add(place, entry, &experts, top_k);
        Ok(())
    }

    /// Steps never go back; one that does is told as the row that it repeats, if it does.
    fn enter_step(&mut self, line: u64, step: u64, layer: u16) -> Result<(), TraceError> {
        self.numbered = true;
        let Some(first) = self.first_step else {
            self.first_step = Some(step);
            self.token = step;
            return Ok(());
        };
        if step < self.token {
            let seen = step >= first && self.counts.missing_steps == 0;
            let fault = RowFault::Repeated;
            return Err(if seen {
                TraceError::Row { line, token: step, layer, fault }
            } else {
                TraceError::StepBack { line, step, previous: self.token }
            });
        }
        self.counts.missing_steps += (step - self.token).saturating_sub(1);
        self.token = step;
        Ok(())
    }

    /// The routes of a record without its padding, and the rows that are padding.
    fn check_routes(&self, record: &Record, layer: u16) -> Result<(Vec<u16>, u64), TraceError> {
        let ModelShape { n_experts, top_k, .. } = self.shape;
        let (line, width) = (record.line, usize::from(top_k));
        let fail = |fault| TraceError::Row { line, token: self.token, layer, fault };
        let odd = match &record.rows {
            Rows::Flat => Some(record.ids.len()).filter(|len| *len == 0 || len % width != 0),
            Rows::Each(widths) => widths.iter().copied().find(|&found| found != width),
        };
        if let Some(found) = odd {
            return Err(fail(RowFault::Width { found, top_k }));
        }
        let tokens = record.ids.len() / width;
        if tokens == 0 || tokens > MAX_TOKENS_PER_RECORD {
            return Err(TraceError::TokenCount { line, tokens, limit: MAX_TOKENS_PER_RECORD });
        }
        let mut experts = Vec::with_capacity(record.ids.len());
        let mut padding = 0;
        for route in record.ids.chunks(width) {
            match route.iter().filter(|&&id| id == PADDING).count() {
                0 => {}
                count if count == width => {
                    padding += 1;
                    continue;
                }
                _ => return Err(fail(RowFault::HalfPadded)),
            }
            let start = experts.len();
            for &expert in route {
                let known = u16::try_from(expert).ok().filter(|&id| id < n_experts);
                let id =
                    known.ok_or_else(|| fail(RowFault::UnknownExpert { expert, n_experts }))?;
                if experts[start..].contains(&id) {
                    return Err(fail(RowFault::Duplicate { expert: id }));
                }
                experts.push(id);
            }
        }
        Ok((experts, padding))
    }

    /// Types the open iteration and makes its passes ready.
    fn close(&mut self) -> Result<(), TraceError> {
        let layers = self.shape.moe_layers.len();
        let [first, again] =
            std::mem::replace(&mut self.open, [Pass::new(layers), Pass::new(layers)]);
        if first.is_empty() {
            return Ok(());
        }
        let token = self.token;
        if !self.numbered {
            self.token += 1;
        }
        let is_first = !std::mem::replace(&mut self.seen_first, true);
        let first_width = first.width(token, &self.shape, self.options.max_draft)?;
        if is_first && self.options.dry_run.is(&first, &self.shape) {
            self.counts.dry_run_passes += 1;
            self.counts.dry_run_records += first.records();
            self.counts.dry_run_tokens += first.layer_tokens();
            return self.close_pass(token, again);
        }
        if again.is_empty() {
            return self.settle(token, first, &first_width);
        }
        // The pass ran again as a whole, or one row is there twice.
        let again_width = again.width(token, &self.shape, self.options.max_draft);
        match (first_width, again_width) {
            (Width::Decode(_), Ok(Width::Decode(tokens))) => {
                self.end_stale();
                self.emit_fallback(first, again, tokens);
                Ok(())
            }
            (width, Ok(Width::Padding)) => self.settle(token, first, &width),
            (Width::Padding, Ok(width)) => self.settle(token, again, &width),
            _ => {
                let (place, entry) =
                    again.into_entries().next().expect("a pass that is not empty has a row");
                let layer = self.shape.moe_layers[place];
                let fault = RowFault::Repeated;
                Err(TraceError::Row { line: entry.line, token, layer, fault })
            }
        }
    }

    fn close_pass(&mut self, token: u64, pass: Pass) -> Result<(), TraceError> {
        if pass.is_empty() {
            return Ok(());
        }
        let width = pass.width(token, &self.shape, self.options.max_draft)?;
        self.settle(token, pass, &width)
    }

    /// Takes a pass that is alone in its iteration, as far as its rows tell.
    fn settle(&mut self, token: u64, pass: Pass, width: &Width) -> Result<(), TraceError> {
        match *width {
            Width::Padding => {}
            Width::Prefill => {
                self.release()?;
                self.counts.prefill_passes += 1;
                self.counts.prefill_records += pass.records();
                self.counts.prefill_tokens += pass.layer_tokens();
            }
            Width::Decode(1) => {
                let top_k = self.shape.top_k;
                let routes = pass.first_token(top_k);
                if self.held.as_ref().is_some_and(|(_, held)| held.first_token(top_k) == routes) {
                    let (_, attempt) = self.held.take().expect("it was just there");
                    self.end_stale();
                    self.emit_fallback(attempt, pass, 1);
                    return Ok(());
                }
                self.release()?;
                self.watch_stale(token, &pass, routes)?;
                self.counts.normal += 1;
                self.counts.accepted_tokens += 1;
                self.emit(pass, PassKind::Normal, 1);
            }
            Width::Decode(_) => {
                self.release()?;
                self.held = Some((token, pass));
                // Only where steps have no number can the next pass be this one run again.
                if self.numbered {
                    self.release()?;
                }
            }
        }
        Ok(())
    }

    /// The held pass was not repeated: its drafts were accepted.
    fn release(&mut self) -> Result<(), TraceError> {
        let Some((_, pass)) = self.held.take() else { return Ok(()) };
        self.end_stale();
        let tokens = pass.entries().next().map_or(0, |entry| entry.tokens);
        self.counts.spec_accept += 1;
        self.counts.accepted_tokens += tokens as u64;
        self.emit(pass, PassKind::SpecAccept, tokens);
        Ok(())
    }

    fn emit_fallback(&mut self, attempt: Pass, again: Pass, tokens: usize) {
        self.counts.spec_fallback += 1;
        self.counts.accepted_tokens += tokens as u64;
        self.emit(attempt, PassKind::SpecFallback, 0);
        self.emit(again, PassKind::SpecFallback, tokens);
    }

    /// Makes a pass ready; its sequence goes on by the tokens `accepted`.
    fn emit(&mut self, pass: Pass, kind: PassKind, accepted: usize) {
        let named = pass.entries().next().and_then(|entry| entry.position);
        let position = named.unwrap_or(self.next_position);
        for (place, entry) in pass.into_entries() {
            let layer = self.shape.moe_layers[place];
            let step = self.next_step;
            let info = PassInfo { step, position, layer, phase: Phase::Decode, kind };
            let pass = LayerPass::new(info, self.shape.top_k, entry.experts)
                .expect("the routes were checked to be whole");
            self.ready.push_back(pass);
            self.counts.passed_records += 1;
        }
        self.next_step += 1;
        self.next_position = position.saturating_add(accepted as u64);
    }

    fn watch_stale(&mut self, token: u64, pass: &Pass, routes: Vec<u16>) -> Result<(), TraceError> {
        let line = pass.first_line();
        let ended = self.stale.next(line, token, routes);
        self.note_stale(ended);
        match (self.options.stale, self.stale.stale_for()) {
            (Stale::Refuse, Some(tokens)) => {
                let layer = self.shape.moe_layers[0];
                let fault = RowFault::Stale { tokens };
                Err(TraceError::Row { line, token, layer, fault })
            }
            _ => Ok(()),
        }
    }

    fn end_stale(&mut self) {
        let ended = self.stale.end();
        self.note_stale(ended);
    }

    fn note_stale(&mut self, ended: Option<Notice>) {
        self.counts.stale_runs += u64::from(ended.is_some());
        let room = MAX_NOTICES.saturating_sub(self.notices.len());
        self.notices.extend(ended.into_iter().take(room));
    }

    /// The end of the input: closes what is whole, drops what a tear left in pieces.
    fn finish(&mut self) -> Result<(), TraceError> {
        self.over = true;
        let torn = self.source.torn();
        if torn.is_some() {
            let [first, again] = &self.open;
            let whole = first.is_whole() && (again.is_empty() || again.is_whole());
            if !whole {
                self.counts.torn_records = first.records() + again.records();
                let layers = self.shape.moe_layers.len();
                self.open = [Pass::new(layers), Pass::new(layers)];
            }
        }
        self.close()?;
        self.release()?;
        self.end_stale();
        if let Some(torn) = torn {
            let unused = self.counts.torn_records;
            // Above the limit too: there is one at most.
            self.notices.push(Notice::Torn { line: torn.line, records: torn.records, unused });
        }
        Ok(())
    }
}

impl<S: Records> Iterator for Canonical<S> {
    type Item = Result<LayerPass, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_pass().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.over = true;
            self.ready.clear();
        }
        next
    }
}
