//! What the core is told about where a tensor lies.

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
