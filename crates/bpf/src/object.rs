//! Maps of loaded objects, and values as the kernel half lays them out.
use crate::Error;
use libbpf_rs::{MapCore, MapHandle, Object};

/// A map of a loaded object, by name.
pub(crate) fn map(object: &Object, name: &str) -> Result<MapHandle, Error> {
    let found = object.maps().find(|m| m.name() == name).ok_or_else(|| Error::Kernel {
        doing: format!("find the map {name}"),
        reason: "the object does not have it".into(),
    })?;
    MapHandle::try_from(&found).map_err(|e| Error::kernel(format!("open the map {name}"), e))
}

/// The bytes of a plain value.
pub(crate) fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: `value` is a valid, initialised, generated `repr(C)` type whose padding the C side names
    // explicitly, so all of its bytes are initialised; the slice does not outlive it.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value that these bytes are; zeros stand for bytes that are missing.
///
/// `T` has to be a generated `repr(C)` type of integers only, for which every pattern of bits is a value.
pub(crate) fn value_of<T: Copy + Default>(bytes: &[u8]) -> T {
    let mut value = T::default();
    let n = bytes.len().min(size_of::<T>());
    // SAFETY: `value` is valid for writing its size; any bits are a `T` (see above); `n` is within both.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut value).cast(), n) };
    value
}
