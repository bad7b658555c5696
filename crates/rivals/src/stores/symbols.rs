//! Functions of a library that is opened on first use.

use core::ffi::{CStr, c_void};

/// A library that stays open until the program ends.
pub(super) struct Library(*mut c_void);

impl Library {
    /// Opens the first of these libraries that exists.
    pub(super) fn open(names: &[&CStr]) -> Option<Self> {
        names.iter().find_map(|name| {
            // SAFETY: a name with a final zero; the library's initialisers are those of the
            // system's package.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
            (!handle.is_null()).then_some(Self(handle))
        })
    }

    /// The address of a function.
    pub(super) fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle stays open; the name ends in zero.
        let at = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    }
}

/// Defines a structure of functions of a library, and its constructor.
macro_rules! functions {
    ($library:ident { $($name:ident: fn($($arg:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        /// The functions of the library that are used here.
        #[derive(Clone, Copy)]
        pub(super) struct $library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl $library {
            /// Finds all functions. `None` if one is missing.
            pub(super) fn find(library: &$crate::stores::symbols::Library) -> Option<Self> {
                Some(Self {
                    $($name: {
                        const NAME: &str = concat!(stringify!($name), "\0");
                        let name = core::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()).ok()?;
                        let at = library.symbol(name)?;
                        // SAFETY: the library's header declares the function of this name with
                        // this type.
                        unsafe {
                            core::mem::transmute::<
                                *mut core::ffi::c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $result)?,
                            >(at)
                        }
                    },)*
                })
            }
        }
    };
}
pub(super) use functions;
