//! The module API of Redis and Valkey: the functions in use, looked up by name when the module is
//! loaded. All unsafe code of the crate is here, and no panic leaves it.
//!
//! A function of the API is called only between the entry of a command and its end, on the thread
//! that entered it, with pointers that the server passed to that command or returned in it.
#![expect(unsafe_code, reason = "the module API is a table of C functions")]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_longlong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{mem, slice};

use crate::call::{CommandCall, Reply, ReplyResult};
use crate::value::{Found, StoredValue};
use crate::{adhoc, decide};

const OK: c_int = 0;
const ERR: c_int = 1;
const READ: c_int = 1;
const WRITE: c_int = 2;
const EMPTY_KEY: c_int = 0;
/// A key that was opened for writing counts as modified only if the module says so: denials open
/// keys, too.
const NO_IMPLICIT_SIGNAL_MODIFIED: c_int = 1 << 1;
const API_VERSION: c_int = 1;

const NAME: &CStr = c"tidegate";
const FLAGS: &CStr = c"write deny-oom fast";
/// For servers that know no key specs.
const FLAGS_WITH_GETKEYS: &CStr = c"write deny-oom fast getkeys-api";
const INTERNAL_ERROR: &CStr =
    c"ERR internal error of the module; the request may have been charged, see the server's log";

/// Opaque, apart from its first field: the function that finds the others.
#[repr(C)]
struct RawContext {
    get_api: GetApi,
}
enum RawString {}
enum RawKey {}
enum RawCommand {}

type GetApi = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type CommandFunction = extern "C" fn(*mut RawContext, *mut *mut RawString, c_int) -> c_int;

/// Declares the table of functions: those that every supported server has, then others.
macro_rules! api {
    (required { $($field:ident: $name:literal fn($($argument:ty),* $(; $dots:tt)?) $(-> $result:ty)?;)* }
     optional { $($other:ident: $other_name:literal fn($($other_argument:ty),*) -> $other_result:ty;)* }) => {
        struct Api {
            $($field: unsafe extern "C" fn($($argument),* $(, $dots)?) $(-> $result)?,)*
            $($other: Option<unsafe extern "C" fn($($other_argument),*) -> $other_result>,)*
        }

        impl Api {
            /// The name of the first function that is missing, if one is.
            fn load(get_api: GetApi) -> Result<Self, &'static CStr> {
                Ok(Self {
                    // SAFETY: the server's header declares the function of this name so.
                    $($field: unsafe { find(get_api, $name) }.ok_or($name)?,)*
                    // SAFETY: as above.
                    $($other: unsafe { find(get_api, $other_name) },)*
                })
            }
        }
    };
}

api! {
    required {
        set_module_attribs: c"RedisModule_SetModuleAttribs"
            fn(*mut RawContext, *const c_char, c_int, c_int);
        is_module_name_busy: c"RedisModule_IsModuleNameBusy" fn(*const c_char) -> c_int;
        set_module_options: c"RedisModule_SetModuleOptions" fn(*mut RawContext, c_int);
        create_command: c"RedisModule_CreateCommand"
            fn(*mut RawContext, *const c_char, CommandFunction, *const c_char, c_int, c_int, c_int)
            -> c_int;
        log: c"RedisModule_Log" fn(*mut RawContext, *const c_char, *const c_char; ...);
        string_ptr_len: c"RedisModule_StringPtrLen"
            fn(*const RawString, *mut usize) -> *const c_char;
        create_string: c"RedisModule_CreateString"
            fn(*mut RawContext, *const c_char, usize) -> *mut RawString;
        free_string: c"RedisModule_FreeString" fn(*mut RawContext, *mut RawString);
        open_key: c"RedisModule_OpenKey"
            fn(*mut RawContext, *mut RawString, c_int) -> *mut RawKey;
        close_key: c"RedisModule_CloseKey" fn(*mut RawKey);
        key_type: c"RedisModule_KeyType" fn(*mut RawKey) -> c_int;
        string_dma: c"RedisModule_StringDMA" fn(*mut RawKey, *mut usize, c_int) -> *mut c_char;
        string_set: c"RedisModule_StringSet" fn(*mut RawKey, *mut RawString) -> c_int;
        set_abs_expire: c"RedisModule_SetAbsExpire" fn(*mut RawKey, c_longlong) -> c_int;
        signal_modified_key: c"RedisModule_SignalModifiedKey"
            fn(*mut RawContext, *mut RawString) -> c_int;
        replicate: c"RedisModule_Replicate"
            fn(*mut RawContext, *const c_char, *const c_char; ...) -> c_int;
        reply_with_error: c"RedisModule_ReplyWithError"
            fn(*mut RawContext, *const c_char) -> c_int;
        reply_with_integer: c"RedisModule_ReplyWithLongLong"
            fn(*mut RawContext, c_longlong) -> c_int;
        reply_with_array: c"RedisModule_ReplyWithArray" fn(*mut RawContext, c_long) -> c_int;
        reply_with_bytes: c"RedisModule_ReplyWithStringBuffer"
            fn(*mut RawContext, *const c_char, usize) -> c_int;
        is_keys_position_request: c"RedisModule_IsKeysPositionRequest"
            fn(*mut RawContext) -> c_int;
        key_at_pos: c"RedisModule_KeyAtPos" fn(*mut RawContext, c_int);
    }
    optional {
        get_command: c"RedisModule_GetCommand"
            fn(*mut RawContext, *const c_char) -> *mut RawCommand;
        set_command_info: c"RedisModule_SetCommandInfo"
            fn(*mut RawCommand, *const CommandInfo) -> c_int;
        add_acl_category: c"RedisModule_AddACLCategory"
            fn(*mut RawContext, *const c_char) -> c_int;
        set_acl_categories: c"RedisModule_SetCommandACLCategories"
            fn(*mut RawCommand, *const c_char) -> c_int;
    }
}

static API: OnceLock<Api> = OnceLock::new();

/// The function of this name.
///
/// # Safety
///
/// `T` is the type of a pointer to that function.
unsafe fn find<T>(get_api: GetApi, name: &CStr) -> Option<T> {
    let mut function = null_mut();
    // SAFETY: the server passed `get_api`, which writes one pointer.
    let found = unsafe { get_api(name.as_ptr(), &raw mut function) } == OK;
    // SAFETY: a pointer to a function that is not null; the caller vouches for its type.
    (found && !function.is_null()).then(|| unsafe { mem::transmute_copy(&function) })
}

/// How the keys of a command are found, for Cluster, ACLs and proxies. Declared as the server does.
#[repr(C)]
struct CommandInfo {
    version: *const InfoVersion,
    summary: *const c_char,
    complexity: *const c_char,
    since: *const c_char,
    history: *const c_void,
    tips: *const c_char,
    arity: c_int,
    key_specs: *const KeySpec,
    arguments: *const c_void,
}

/// The sizes of the structures that this module was built with.
#[repr(C)]
struct InfoVersion {
    version: c_int,
    history_entry: usize,
    key_spec: usize,
    argument: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct KeySpec {
    notes: *const c_char,
    flags: u64,
    /// The end of a list of specs has 0.
    begin_search_type: c_int,
    begin_search: BeginSearch,
    find_keys_type: c_int,
    find_keys: [c_int; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
union BeginSearch {
    position: c_int,
    _keyword: (*const c_char, c_int),
}

impl KeySpec {
    /// Read, and changed in place.
    const READ_WRITE: u64 = 1 << 1 | 1 << 4 | 1 << 5;
    const BY_INDEX: c_int = 2;
    const RANGE: c_int = 2;
    const BY_NUMBER: c_int = 3;
    const END: Self = Self {
        notes: null(),
        flags: 0,
        begin_search_type: 0,
        begin_search: BeginSearch { position: 0 },
        find_keys_type: 0,
        find_keys: [0; 3],
    };

    const fn new(position: c_int, find_keys_type: c_int, find_keys: [c_int; 3]) -> Self {
        let begin_search = BeginSearch { position };
        let (flags, begin_search_type) = (Self::READ_WRITE, Self::BY_INDEX);
        Self { flags, begin_search_type, begin_search, find_keys_type, find_keys, ..Self::END }
    }
}

/// A command of the module.
struct ModuleCommand {
    name: &'static CStr,
    function: CommandFunction,
    summary: &'static CStr,
    /// With the name; negative for at least so many.
    arity: c_int,
    /// The argument with the only key; 0 if the first argument is the number of keys.
    key: c_int,
}

const COMMANDS: [ModuleCommand; 3] = [
    ModuleCommand {
        name: c"CL.THROTTLE",
        function: throttle_command,
        summary: c"Checks a key under max_burst, count and period, as redis-cell does",
        arity: -5,
        key: 1,
    },
    ModuleCommand {
        name: c"TG.LIMIT",
        function: limit_command,
        summary: c"Checks a key under a limit in Tidegate's notation",
        arity: -3,
        key: 2,
    },
    ModuleCommand {
        name: c"TG.DECIDE",
        function: decide_command,
        summary: c"Decides plain checks of Tidegate's script protocol",
        arity: -2,
        key: 0,
    },
];

/// Called by the server when it loads the module.
#[unsafe(no_mangle)]
extern "C" fn RedisModule_OnLoad(
    context: *mut RawContext,
    _arguments: *mut *mut RawString,
    _count: c_int,
) -> c_int {
    catch_unwind(|| if load(context).is_ok() { OK } else { ERR }).unwrap_or(ERR)
}

fn load(context: *mut RawContext) -> Result<(), ()> {
    // SAFETY: the first field of the context that the server passes is this function.
    let get_api = unsafe { (*context).get_api };
    let api = match (API.get(), Api::load(get_api)) {
        (Some(api), _) => api,
        (None, Ok(api)) => API.get_or_init(|| api),
        // Without the function that logs, nothing can be reported.
        (None, Err(_)) => return Err(()),
    };
    // SAFETY: as the server's header initializes a module.
    unsafe {
        if (api.is_module_name_busy)(NAME.as_ptr()) != 0 {
            return Err(());
        }
        (api.set_module_attribs)(context, NAME.as_ptr(), version(), API_VERSION);
        (api.set_module_options)(context, NO_IMPLICIT_SIGNAL_MODIFIED);
    }
    let context = Context { api, raw: context };
    // SAFETY: during load; the name is a C string.
    let has_category =
        api.add_acl_category.is_some_and(|add| unsafe { add(context.raw, NAME.as_ptr()) } == OK);
    COMMANDS.iter().try_for_each(|command| context.register(command, has_category))
}

/// Called by the server before it unloads the module, which has no data of its own.
#[unsafe(no_mangle)]
extern "C" fn RedisModule_OnUnload(_context: *mut RawContext) -> c_int {
    OK
}

/// The version of the package as one number: 10203 for 1.2.3.
fn version() -> c_int {
    let parts = env!("CARGO_PKG_VERSION").split(['.', '-']).take(3);
    parts.fold(0, |version, part| 100 * version + part.parse().unwrap_or(0))
}

/// The context of a command, or of the load of the module.
#[derive(Clone, Copy)]
struct Context {
    api: &'static Api,
    raw: *mut RawContext,
}

impl Context {
    fn register(self, command: &ModuleCommand, has_category: bool) -> Result<(), ()> {
        let Self { api, raw } = self;
        let has_specs = api.get_command.is_some() && api.set_command_info.is_some();
        let flags = if command.key == 0 && !has_specs { FLAGS_WITH_GETKEYS } else { FLAGS };
        let (name, key) = (command.name.as_ptr(), command.key);
        let step = c_int::from(key > 0);
        // SAFETY: during load; all are C strings.
        let created = unsafe {
            (api.create_command)(raw, name, command.function, flags.as_ptr(), key, key, step)
        };
        if created != OK {
            let text = c"the command %s exists already. If redis-cell is loaded, remove it first: \
                         both have CL.THROTTLE, and their values differ";
            // SAFETY: the format has one string.
            unsafe { (api.log)(raw, c"warning".as_ptr(), text.as_ptr(), name) };
            return Err(());
        }
        let (Some(get_command), Some(set_info)) = (api.get_command, api.set_command_info) else {
            return Ok(());
        };
        let spec = match key {
            0 => KeySpec::new(1, KeySpec::BY_NUMBER, [0, 1, 1]),
            key => KeySpec::new(key, KeySpec::RANGE, [0, 1, 0]),
        };
        let specs = [spec, KeySpec::END];
        let info = CommandInfo {
            version: &InfoVersion {
                version: 1,
                history_entry: 2 * size_of::<*const c_char>(),
                key_spec: size_of::<KeySpec>(),
                argument: 9 * size_of::<*const c_char>(),
            },
            summary: command.summary.as_ptr(),
            complexity: c"O(N) where N is the number of keys".as_ptr(),
            since: null(),
            history: null(),
            tips: null(),
            arity: command.arity,
            key_specs: specs.as_ptr(),
            arguments: null(),
        };
        // SAFETY: the server copies what `info` points to, which lives until then.
        let described = unsafe { set_info(get_command(raw, name), &raw const info) } == OK;
        if let (true, Some(set_categories)) = (has_category, api.set_acl_categories) {
            // SAFETY: during load, of a command that exists.
            unsafe { set_categories(get_command(raw, name), NAME.as_ptr()) };
        }
        if described { Ok(()) } else { Err(()) }
    }

    fn reply(self, reply: &Reply) {
        let Self { api, raw } = self;
        // SAFETY: once for each command; the lengths are those of the slices.
        unsafe {
            match reply {
                Reply::Bytes(bytes) => {
                    (api.reply_with_bytes)(raw, bytes.as_ptr().cast(), bytes.len());
                }
                Reply::Integer(integer) => {
                    (api.reply_with_integer)(raw, *integer);
                }
                Reply::Throttle(integers) => {
                    (api.reply_with_array)(raw, 5);
                    for integer in integers {
                        (api.reply_with_integer)(raw, *integer);
                    }
                }
                Reply::Decision(integers) => {
                    (api.reply_with_array)(raw, 8);
                    for integer in integers {
                        (api.reply_with_integer)(raw, *integer);
                    }
                    for name in ["adhoc", "module"] {
                        (api.reply_with_bytes)(raw, name.as_ptr().cast(), name.len());
                    }
                }
            }
        }
    }

    fn error(self, text: &CStr) {
        // SAFETY: the server copies the text.
        unsafe { (self.api.reply_with_error)(self.raw, text.as_ptr()) };
    }
}

/// One call of a command.
struct RedisCall<'a> {
    context: Context,
    arguments: &'a [*mut RawString],
}

/// An open key, closed on drop.
struct RedisKey {
    context: Context,
    raw: NonNull<RawKey>,
    name: *mut RawString,
}

impl Drop for RedisKey {
    fn drop(&mut self) {
        // SAFETY: opened in this command, and closed once.
        unsafe { (self.context.api.close_key)(self.raw.as_ptr()) };
    }
}

impl RedisKey {
    /// The string under the key. Valid until the key is written.
    fn bytes(&self, mode: c_int) -> Option<NonNull<[u8]>> {
        let mut len = 0;
        // SAFETY: the key is open for reading and writing.
        let start = unsafe { (self.context.api.string_dma)(self.raw.as_ptr(), &raw mut len, mode) };
        Some(NonNull::slice_from_raw_parts(NonNull::new(start.cast())?, len))
    }

    /// Watching clients and caches of clients see the change.
    fn signal_modified(&self) {
        let Context { api, raw } = self.context;
        // SAFETY: the name of a key of this command.
        unsafe { (api.signal_modified_key)(raw, self.name) };
    }
}

impl<'a> CommandCall<'a> for RedisCall<'a> {
    type Key = RedisKey;

    fn argument(&self, index: usize) -> Option<&'a [u8]> {
        let argument = *self.arguments.get(index)?;
        let mut len = 0;
        // SAFETY: the strings of the arguments do not change during the command.
        unsafe {
            let start = (self.context.api.string_ptr_len)(argument, &raw mut len);
            Some(slice::from_raw_parts(start.cast(), len))
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the clock of the server")]
    fn now(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn open(&mut self, argument: usize) -> Option<RedisKey> {
        let (context, name) = (self.context, *self.arguments.get(argument)?);
        // SAFETY: the name is an argument of this command.
        let raw = unsafe { (context.api.open_key)(context.raw, name, READ | WRITE) };
        Some(RedisKey { context, raw: NonNull::new(raw)?, name })
    }

    fn read(&mut self, key: &RedisKey) -> Found {
        let Some(bytes) = key.bytes(READ) else { return Found::OtherType };
        // SAFETY: the key is open.
        if bytes.is_empty() && unsafe { (self.context.api.key_type)(key.raw.as_ptr()) } == EMPTY_KEY
        {
            return Found::Missing;
        }
        // SAFETY: nothing writes the key before the copy is made.
        Found::Value(StoredValue::new(unsafe { bytes.as_ref() }))
    }

    fn overwrite(&mut self, key: &mut RedisKey, offset: usize, bytes: &[u8]) {
        let Context { api, raw } = self.context;
        if let Some(mut found) = key.bytes(READ | WRITE) {
            // SAFETY: nothing else reads or writes the key meanwhile.
            let target = unsafe { found.as_mut() };
            if let Some(target) = target.get_mut(offset..).and_then(|t| t.get_mut(..bytes.len())) {
                target.copy_from_slice(bytes);
            }
        }
        key.signal_modified();
        let offset = c_longlong::try_from(offset).unwrap_or_default();
        let (start, len) = (bytes.as_ptr().cast::<c_char>(), bytes.len());
        // SAFETY: a string, a number, and a buffer with its length, as the format says.
        unsafe {
            let (command, format) = (c"SETRANGE".as_ptr(), c"slb".as_ptr());
            (api.replicate)(raw, command, format, key.name, offset, start, len);
        }
    }

    fn set(&mut self, key: &mut RedisKey, value: &[u8], expires_ms: u64) {
        let Context { api, raw } = self.context;
        let expires = c_longlong::try_from(expires_ms).unwrap_or(c_longlong::MAX);
        // SAFETY: the string is freed once; the server keeps references of its own. Two strings, a
        // C string and a number, as the format says.
        unsafe {
            let string = (api.create_string)(raw, value.as_ptr().cast(), value.len());
            (api.string_set)(key.raw.as_ptr(), string);
            (api.set_abs_expire)(key.raw.as_ptr(), expires);
            key.signal_modified();
            let (command, format) = (c"SET".as_ptr(), c"sscl".as_ptr());
            let pxat = c"PXAT".as_ptr();
            (api.replicate)(raw, command, format, key.name, string, pxat, expires);
            (api.free_string)(raw, string);
        }
    }
}

/// Runs a command. A panic becomes an error.
fn run(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
    command: fn(&mut RedisCall<'_>) -> ReplyResult,
) -> c_int {
    let Some(api) = API.get() else { return ERR };
    let context = Context { api, raw: context };
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let count = usize::try_from(count).unwrap_or_default();
        // SAFETY: the server passes so many arguments, which live as long as the command.
        let arguments = unsafe { slice::from_raw_parts(arguments, count) };
        match command(&mut RedisCall { context, arguments }) {
            Ok(reply) => context.reply(&reply),
            Err(text) => context.error(&CString::new(text).unwrap_or_default()),
        }
    }));
    if ran.is_err() {
        context.error(INTERNAL_ERROR);
    }
    OK
}

extern "C" fn throttle_command(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
) -> c_int {
    run(context, arguments, count, |call| adhoc::throttle(call))
}

extern "C" fn limit_command(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
) -> c_int {
    run(context, arguments, count, |call| adhoc::limit(call))
}

extern "C" fn decide_command(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
) -> c_int {
    if let Some(api) = API.get()
        && (api.get_command.is_none() || api.set_command_info.is_none())
        // SAFETY: in a command that is declared with `getkeys-api`.
        && unsafe { (api.is_keys_position_request)(context) } != 0
    {
        report_keys(api, context, arguments, count);
        return OK;
    }
    run(context, arguments, count, |call| decide::decide(call))
}

/// Reports the positions of the keys to a server without key specs.
fn report_keys(
    api: &'static Api,
    raw: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
) {
    let len = usize::try_from(count).unwrap_or_default();
    // SAFETY: as in `run`.
    let arguments = unsafe { slice::from_raw_parts(arguments, len) };
    let call = RedisCall { context: Context { api, raw }, arguments };
    let keys = call.argument(1).and_then(|word| crate::call::integer(word).ok()).unwrap_or(0);
    let last = c_int::try_from(keys).unwrap_or(c_int::MAX).min(count - 2) + 2;
    for position in 2..last {
        // SAFETY: only after `is_keys_position_request`.
        unsafe { (api.key_at_pos)(raw, position) };
    }
}
