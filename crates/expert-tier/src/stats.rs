use serde::Serialize;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// What a tier did since it was opened. Subtract two to get an interval.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
        pub struct Snapshot { $($(#[doc = $doc])+ pub $name: u64),+ }

        impl Snapshot {
            /// Name and meaning of every counter, in the order of [`Snapshot::values`].
            pub const FIELDS: &[(&str, &str)] =
                &[$((stringify!($name), concat!($($doc),+))),+];

            /// Every counter, in the order of [`Snapshot::FIELDS`].
            pub fn values(&self) -> impl ExactSizeIterator<Item = u64> {
                [$(self.$name),+].into_iter()
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),+ }

        impl Counters {
            // Each counter is monotone and read for reports only: no ordering is needed.
            pub(crate) fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }

            // Called once an adoption; a function of its own, so that its cost can be told apart.
            #[inline(never)]
            pub(crate) fn add(&self, delta: &Snapshot) {
                $(self.$name.fetch_add(delta.$name, Ordering::Relaxed);)+
            }
        }

        impl Add for Snapshot {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self { $($name: self.$name + other.$name),+ }
            }
        }

        impl Sub for Snapshot {
            type Output = Self;

            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name - earlier.$name),+ }
            }
        }
    };
}

counters! {
    /// Calls of `adopt` that succeeded.
    adoptions,
    /// Experts adopted, warm and cold.
    adopted_experts,
    /// Their nominal bytes: what the compute may read in place.
    adopted_bytes,
    /// Adopted experts of which every page was in the page cache (that were kept, in an arena).
    warm_experts,
    /// Nominal bytes of these.
    warm_bytes,
    /// Adopted experts of which a page was missing, or that were read past the page cache (that
    /// were not kept, in an arena).
    cold_experts,
    /// Nominal bytes of these.
    cold_bytes,
    /// Bytes of the pages that the probe found missing (all pages, where the arm does not cache).
    missing_bytes,
    /// Bytes read past the page cache for experts that only passed ([`Tier::begin_passing`]).
    ///
    /// [`Tier::begin_passing`]: crate::Tier::begin_passing
    passed_bytes,
    /// Experts that waited for another thread's fill instead of starting their own.
    shared_fills,
    /// Time inside `adopt`, probing included: the only wait of the design, in nanoseconds.
    adopt_ns,
    /// The part of it spent filling.
    fill_ns,
}

impl Snapshot {
    /// One expert more, of so many nominal bytes.
    pub(crate) fn count(&mut self, bytes: u64, warm: bool) {
        self.adopted_experts += 1;
        self.adopted_bytes += bytes;
        if warm {
            self.warm_experts += 1;
            self.warm_bytes += bytes;
        } else {
            self.cold_experts += 1;
            self.cold_bytes += bytes;
        }
    }

    /// Share of adopted experts that were warm; `None` before the first.
    #[must_use]
    pub fn warm_ratio(&self) -> Option<f64> {
        (self.adopted_experts > 0).then(|| self.warm_experts as f64 / self.adopted_experts as f64)
    }
}
