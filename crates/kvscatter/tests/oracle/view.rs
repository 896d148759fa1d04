//! Converts the oracle's views to layouts of the core.

use kvscatter::Layout;
use kvscatter_oracle::cases::View;

pub(crate) trait AsLayout {
    fn layout(&self) -> Layout<'_>;
}

impl AsLayout for View {
    fn layout(&self) -> Layout<'_> {
        match self.strides() {
            None => Layout::dense(self.shape()),
            Some(strides) => Layout::strided(self.shape(), strides).with_offset(self.offset()),
        }
    }
}
