//! SQLite's file system functions (its *VFS*) over simulated disks; the only unsafe code.
//!
//! One file system is registered for the whole process, under [`NAME`]; a path's first part says on
//! which disk. Nothing is ever unregistered, so that no connection can outlive what it calls.
#![allow(unsafe_code, reason = "SQLite calls through pointers; each block says why it may")]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rusqlite::ffi;

use crate::disk::{Code, Disk, Handle, Region};

/// The name the file system is registered under.
pub(crate) const NAME: &str = "earnest-sim";

const C_NAME: &CStr = c"earnest-sim";

/// The longest path, with the zero at its end.
const MAX_PATH: c_int = 64;

/// The disks that are there, by number.
static DISKS: Mutex<(u64, BTreeMap<u64, Arc<Disk>>)> = Mutex::new((0, BTreeMap::new()));

/// A disk that SQLite can reach, as long as this lives.
#[derive(Debug)]
pub(crate) struct Mounted {
    number: u64,
    pub(crate) disk: Arc<Disk>,
}

impl Mounted {
    /// Gives a disk a number.
    pub(crate) fn new(disk: Disk) -> Self {
        register();
        let disk = Arc::new(disk);
        let mut disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
        disks.0 += 1;
        let number = disks.0;
        disks.1.insert(number, disk.clone());
        Self { number, disk }
    }

    /// The path of a file on it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/{}/{name}", self.number))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        DISKS.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&self.number);
    }
}

/// What SQLite keeps of an open file: its own part first, as it wants it.
#[repr(C)]
struct Opened {
    base: ffi::sqlite3_file,
    ours: *mut Ours,
}

struct Ours {
    disk: Arc<Disk>,
    handle: Handle,
    /// What SQLite has pointers to, kept as long as it may use them.
    regions: Vec<Region>,
}

fn register() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let vfs = Box::new(ffi::sqlite3_vfs {
            iVersion: 1,
            szOsFile: c_int::try_from(size_of::<Opened>()).unwrap_or(c_int::MAX),
            mxPathname: MAX_PATH,
            pNext: ptr::null_mut(),
            zName: C_NAME.as_ptr(),
            pAppData: ptr::null_mut(),
            xOpen: Some(open),
            xDelete: Some(delete),
            xAccess: Some(access),
            xFullPathname: Some(full_path),
            xDlOpen: None,
            xDlError: None,
            xDlSym: None,
            xDlClose: None,
            xRandomness: Some(randomness),
            xSleep: Some(sleep),
            xCurrentTime: Some(current_time),
            xGetLastError: Some(last_error),
            xCurrentTimeInt64: None,
            xSetSystemCall: None,
            xGetSystemCall: None,
            xNextSystemCall: None,
        });
        // SAFETY: the structure is complete for its version, its name ends in a zero, and it is
        // leaked, so that SQLite may keep the pointer for as long as the process lives.
        let code = unsafe { ffi::sqlite3_vfs_register(Box::leak(vfs), 0) };
        assert_eq!(code, ffi::SQLITE_OK, "SQLite takes a file system");
    });
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// The disk that a path is on, and the path as text.
///
/// # Safety
/// `path` points to text that ends in a zero.
unsafe fn place(path: *const c_char) -> Option<(Arc<Disk>, String)> {
    // SAFETY: as promised by whoever calls.
    let path = unsafe { CStr::from_ptr(path) }.to_str().ok()?;
    let number = path.strip_prefix('/')?.split('/').next()?.parse().ok()?;
    let disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
    Some((disks.1.get(&number)?.clone(), path.to_owned()))
}

/// What we keep of a file.
///
/// # Safety
/// `file` was opened by [`open`] and is not closed; nobody else uses it meanwhile. SQLite promises
/// both of every file it calls a method of: a connection is used by one thread at a time, and no
/// method calls back.
unsafe fn ours<'a>(file: *mut ffi::sqlite3_file) -> &'a mut Ours {
    // SAFETY: `open` made what SQLite gives us an `Opened`, with a pointer from `Box::into_raw`,
    // which `close` alone takes back.
    unsafe { &mut *(*file.cast::<Opened>()).ours }
}

fn code(done: Result<(), Code>) -> c_int {
    done.err().unwrap_or(ffi::SQLITE_OK)
}

fn usize_of(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or(0)
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let opened = file.cast::<Opened>();
    // SAFETY: SQLite gives `szOsFile` bytes, aligned for any structure. Without methods it does not
    // call `close` on a file that was not opened.
    unsafe { (*opened).base.pMethods = ptr::null() };
    let (disk, name) = if name.is_null() {
        // A file for a moment: on no disk that is ever asked, and gone when it is closed.
        (Arc::new(Disk::new(crate::Random::new(0))), None)
    } else {
        // SAFETY: a name that is not null is text that ends in a zero.
        let Some((disk, name)) = (unsafe { place(name) }) else { return ffi::SQLITE_CANTOPEN };
        (disk, Some(name))
    };
    let create = flags & ffi::SQLITE_OPEN_CREATE != 0;
    let handle = match disk.open(name.as_deref(), create) {
        Ok(handle) => handle,
        Err(code) => return code,
    };
    let ours = Box::into_raw(Box::new(Ours { disk, handle, regions: Vec::new() }));
    // SAFETY: as above; `out_flags` may be null.
    unsafe {
        (*opened).ours = ours;
        (*opened).base.pMethods = &raw const METHODS;
        if !out_flags.is_null() {
            *out_flags = flags;
        }
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let opened = file.cast::<Opened>();
    // SAFETY: the pointer is from `Box::into_raw` in `open`, and taken back once: SQLite closes a
    // file once, and calls nothing of it afterwards.
    let ours = unsafe { Box::from_raw((*opened).ours) };
    ours.disk.close(ours.handle);
    ffi::SQLITE_OK
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    into: *mut c_void,
    length: c_int,
    at: i64,
) -> c_int {
    // SAFETY: see `ours`; SQLite gives `length` bytes to be filled.
    let (ours, into) = unsafe {
        let into = std::slice::from_raw_parts_mut(into.cast::<u8>(), usize_of(length));
        (ours(file), into)
    };
    // What is not filled is zero, also where reading fails.
    into.fill(0);
    match ours.disk.read(ours.handle, into, usize_of(at)) {
        Ok(read) if read == into.len() => ffi::SQLITE_OK,
        Ok(_) => ffi::SQLITE_IOERR_SHORT_READ,
        Err(code) => code,
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    length: c_int,
    at: i64,
) -> c_int {
    // SAFETY: see `ours`; SQLite gives `length` bytes to be written.
    let (ours, from) =
        unsafe { (ours(file), std::slice::from_raw_parts(from.cast::<u8>(), usize_of(length))) };
    code(ours.disk.write(ours.handle, from, usize_of(at)))
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, length: i64) -> c_int {
    // SAFETY: see `ours`.
    let ours = unsafe { ours(file) };
    code(ours.disk.truncate(ours.handle, usize_of(length)))
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: see `ours`.
    let ours = unsafe { ours(file) };
    code(ours.disk.sync(ours.handle))
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, into: *mut i64) -> c_int {
    // SAFETY: see `ours`.
    let ours = unsafe { ours(file) };
    match ours.disk.length(ours.handle) {
        Ok(length) => {
            // SAFETY: SQLite gives where to write to.
            unsafe { *into = i64::try_from(length).unwrap_or(i64::MAX) };
            ffi::SQLITE_OK
        }
        Err(code) => code,
    }
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: see `ours`.
    let ours = unsafe { ours(file) };
    code(ours.disk.lock(ours.handle, level))
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: see `ours`.
    let ours = unsafe { ours(file) };
    ours.disk.unlock(ours.handle, level);
    ffi::SQLITE_OK
}

unsafe extern "C" fn check_reserved(file: *mut ffi::sqlite3_file, into: *mut c_int) -> c_int {
    // SAFETY: see `ours`; SQLite gives where to write to.
    unsafe {
        let ours = ours(file);
        *into = c_int::from(ours.disk.is_reserved(ours.handle));
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn file_control(_: *mut ffi::sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    4096
}

/// As SQLite takes the system's own disks: what stands beside a write that is cut off stays.
unsafe extern "C" fn characteristics(_: *mut ffi::sqlite3_file) -> c_int {
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    nth: c_int,
    bytes: c_int,
    extend: c_int,
    into: *mut *mut c_void,
) -> c_int {
    // SAFETY: see `ours`.
    let ours = unsafe { ours(file) };
    let found = ours.disk.region(ours.handle, usize_of(nth), usize_of(bytes), extend != 0);
    let pointer = match found {
        Err(code) => return code,
        Ok(None) => ptr::null_mut(),
        // Cells that may be written through a shared pointer, and kept until the file is closed.
        Ok(Some(region)) => {
            let pointer = region.as_ptr().cast_mut().cast::<c_void>();
            ours.regions.push(region);
            pointer
        }
    };
    // SAFETY: SQLite gives where to write to.
    unsafe { *into = pointer };
    ffi::SQLITE_OK
}

unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    first: c_int,
    many: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: see `ours`.
    let ours = unsafe { ours(file) };
    let bit = |slot: c_int| u32::try_from(slot).ok().and_then(|slot| 1_u8.checked_shl(slot));
    let slots = (first..first.saturating_add(many)).filter_map(bit).fold(0, |all, one| all | one);
    if flags & ffi::SQLITE_SHM_UNLOCK != 0 {
        ours.disk.unlock_shared(ours.handle, slots);
        return ffi::SQLITE_OK;
    }
    let exclusive = flags & ffi::SQLITE_SHM_EXCLUSIVE != 0;
    code(ours.disk.lock_shared(ours.handle, slots, exclusive))
}

unsafe extern "C" fn shm_barrier(_: *mut ffi::sqlite3_file) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: see `ours`. SQLite uses no pointer to a region after this.
    let ours = unsafe { ours(file) };
    ours.disk.leave(ours.handle);
    ours.regions.clear();
    ffi::SQLITE_OK
}

unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: SQLite gives text that ends in a zero.
    let Some((disk, name)) = (unsafe { place(name) }) else { return ffi::SQLITE_IOERR_DELETE };
    code(disk.delete(&name, sync != 0))
}

unsafe extern "C" fn access(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    _: c_int,
    into: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives text that ends in a zero.
    let Some((disk, name)) = (unsafe { place(name) }) else { return ffi::SQLITE_IOERR_ACCESS };
    match disk.exists(&name) {
        Ok(there) => {
            // SAFETY: SQLite gives where to write to.
            unsafe { *into = c_int::from(there) };
            ffi::SQLITE_OK
        }
        Err(code) => code,
    }
}

unsafe extern "C" fn full_path(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    length: c_int,
    into: *mut c_char,
) -> c_int {
    // SAFETY: SQLite gives text that ends in a zero.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    if bytes.len() > usize_of(length) {
        return ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: SQLite gives `length` bytes to write to, which is enough.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), into, bytes.len()) };
    ffi::SQLITE_OK
}

unsafe extern "C" fn randomness(
    _: *mut ffi::sqlite3_vfs,
    length: c_int,
    into: *mut c_char,
) -> c_int {
    // SAFETY: SQLite gives `length` bytes to write to.
    unsafe { ptr::write_bytes(into, 7, usize_of(length)) };
    length
}

/// Waiting costs nothing here, and brings nobody further.
unsafe extern "C" fn sleep(_: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    microseconds
}

/// The books' times come from their own clock; SQLite is asked for none.
unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, into: *mut f64) -> c_int {
    // SAFETY: SQLite gives where to write to.
    unsafe { *into = 2_461_000.5 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn last_error(_: *mut ffi::sqlite3_vfs, _: c_int, _: *mut c_char) -> c_int {
    0
}
