//! Ranges of numbers with a value each: disjoint, and cut where new ones overwrite them.

use std::collections::BTreeMap;

/// A range of numbers, in one of many spaces of numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) space: u64,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

#[derive(Debug)]
pub(crate) struct Intervals<V>(BTreeMap<(u64, u64), (u64, V)>);

impl<V> Default for Intervals<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<V: Clone> Intervals<V> {
    /// Returns the values of the intervals that overlap the span.
    pub(crate) fn over(&self, span: Span) -> impl Iterator<Item = &V> {
        self.keys(span).into_iter().map(|key| &self.0[&key].1)
    }

    /// Empties the span. Returns the values that were in it.
    pub(crate) fn cut(&mut self, span: Span) -> Vec<V> {
        let mut values = Vec::new();
        for key in self.keys(span) {
            let Some((end, value)) = self.0.remove(&key) else { continue };
            if key.1 < span.begin {
                self.0.insert(key, (span.begin, value.clone()));
            }
            if span.end < end {
                self.0.insert((span.space, span.end), (end, value.clone()));
            }
            values.push(value);
        }
        values
    }

    /// Sets the value of the whole span.
    pub(crate) fn set(&mut self, span: Span, value: V) {
        self.cut(span);
        self.0.insert((span.space, span.begin), (span.end, value));
    }

    fn keys(&self, Span { space, begin, end }: Span) -> Vec<(u64, u64)> {
        let into = self.0.range((space, 0)..(space, begin)).next_back().filter(|(_, (to, _))| *to > begin);
        let inside = self.0.range((space, begin)..(space, end));
        into.into_iter().chain(inside).map(|(key, _)| *key).collect()
    }
}
