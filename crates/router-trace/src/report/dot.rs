use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use plotters_backend::{BackendCoord, DrawingErrorKind};

/// The colour of a series, and how often the colours have begun again before it.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) colour: RGBColor,
    pub(super) round: usize,
}

/// A point of a series, in coordinates `C`: a disc; a triangle where the colours have begun
/// again; a cross after that.
pub(super) struct Dot<C> {
    pub(super) at: C,
    pub(super) look: Look,
}

impl<'a, C> PointCollection<'a, C> for &'a Dot<C> {
    type Point = &'a C;
    type IntoIter = std::iter::Once<&'a C>;

    fn point_iter(self) -> Self::IntoIter {
        std::iter::once(&self.at)
    }
}

impl<C, DB: DrawingBackend> Drawable<DB> for Dot<C> {
    fn draw<I: Iterator<Item = BackendCoord>>(
        &self,
        points: I,
        backend: &mut DB,
        parent: (u32, u32),
    ) -> Result<(), DrawingErrorKind<DB::ErrorType>> {
        // `points` has the place on paper; the one given here is not looked at.
        let (here, colour) = ((0, 0), self.look.colour);
        match self.look.round {
            0 => Circle::new(here, 3, colour.filled()).draw(points, backend, parent),
            1 => TriangleMarker::new(here, 5, colour.filled()).draw(points, backend, parent),
            _ => Cross::new(here, 4, colour).draw(points, backend, parent),
        }
    }
}
