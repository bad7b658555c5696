//! The words of a lock by name, for who tells where its cycles go.

use latchwork_machine::Word;

/// Is told of each word: where it lies, how many bytes it has, and its name.
pub type Tell<'a> = dyn FnMut(usize, usize, &str) + 'a;

/// What has words with names.
pub trait Named {
    /// Tells of each word of this, whose own name is `name`. Words that are alike, as those of all
    /// threads' nodes, have one name.
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>);
}

impl<W: Word> Named for W {
    fn tell_words(&self, name: &str, tell: &mut Tell<'_>) {
        tell(core::ptr::from_ref(self).addr(), size_of::<W>(), name);
    }
}

/// What a node has that needs none.
#[derive(Default)]
pub struct Nothing;

impl Named for Nothing {
    fn tell_words(&self, _: &str, _: &mut Tell<'_>) {}
}

/// Makes [`Named::tell_words`] of a struct's fields; rows stand in brackets.
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
