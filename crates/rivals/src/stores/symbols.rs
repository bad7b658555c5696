//! Functions of a library that is opened when it is asked for.

use core::ffi::{CStr, c_void};

/// A library that stays open for the life of the program.
pub(super) struct Library(*mut c_void);

impl Library {
    /// Opens the first of these that is there.
    pub(super) fn open(names: &[&CStr]) -> Option<Self> {
        names.iter().find_map(|name| {
            // SAFETY: a name that ends in zero; what the library's initialisers do is the affair of
            // the system's package.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
            (!handle.is_null()).then_some(Self(handle))
        })
    }

    /// The address of a function.
    pub(super) fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is open and stays so; the name ends in zero.
        let at = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    }
}

/// A structure of a library's functions, and how it is filled.
macro_rules! functions {
    ($library:ident { $($name:ident: fn($($arg:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        /// The functions of the library that are used.
        #[derive(Clone, Copy)]
        pub(super) struct $library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl $library {
            /// Finds them all; none if one is missing.
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
