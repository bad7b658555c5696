//! Places where tests kill. Without the feature `points` they compile to nothing.

/// A named place.
#[inline(always)]
pub(crate) fn point(name: &'static str) {
    #[cfg(feature = "points")]
    hook::call(name);
    let _ = name;
}

#[cfg(feature = "points")]
pub use hook::set_point_hook;

#[cfg(feature = "points")]
mod hook {
    use std::sync::OnceLock;

    static HOOK: OnceLock<fn(&'static str)> = OnceLock::new();

    /// Has `hook` called with the name of each place that is passed. The first call decides for
    /// good.
    pub fn set_point_hook(hook: fn(&'static str)) {
        let _ = HOOK.set(hook);
    }

    pub(super) fn call(name: &'static str) {
        if let Some(hook) = HOOK.get() {
            hook(name);
        }
    }
}
