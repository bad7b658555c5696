//! The words of a lock by name, for reports on where its cycles are spent.

use latchwork_machine::Word;

/// Receives each word: its address, its size in bytes, and its name.
pub type Tell<'a> = dyn FnMut(usize, usize, &str) + 'a;

/// A type that has named words.
pub trait Named {
    /// Calls `tell` with each word of this, whose own name is `name`. Equal words, such as those of
    /// all threads' nodes, have one name.
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>);
}

impl<W: Word> Named for W {
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
        tell(core::ptr::from_ref(self).addr(), size_of::<W>(), name);
    }
}

/// The own part of a node for orders that need none.
#[derive(Default)]
pub struct Nothing;

impl Named for Nothing {
    fn tell_words(&self, _: &str, _: &mut Tell<'_>) {}
}

/// Implements [`Named::tell_words`] for a struct's fields; rows are in brackets.
macro_rules! words {
    ($($part:tt),*) => {
        fn tell_words(&self, name: &str, tell: &mut $crate::words::Tell<'_>) {
            $($crate::words::words!(@ self, name, tell, $part);)*
        }
    };
    (@ $self:ident, $name:ident, $tell:ident, [$row:ident]) => {
        for one in &$self.$row {
            $crate::Named::tell_words(&**one, &format!("{}.{}", $name, stringify!($row)), $tell);
        }
    };
    (@ $self:ident, $name:ident, $tell:ident, $field:ident) => {
        $self.$field.tell_words(&format!("{}.{}", $name, stringify!($field)), $tell);
    };
}

pub(crate) use words;
