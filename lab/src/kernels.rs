//! `cargo xtask codegen kernels`: the PTX of peer-kernels, and of an example of symm-mem. NVRTC comes as a wheel, is loaded
//! from the cache, and needs neither a GPU nor a CUDA toolkit.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use hmac_sha256::Hash;
use libloading::Library;
use peer_kernels::{LEAST_CAPABILITY, PTX_SEPARATOR, UNITS, Unit, defines};

use xtask::files::{self, Files};
use xtask::headers::{self, Part};
use xtask::pins::{NVRTC, NVRTC_LIBRARY};
use xtask::shell;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Change nothing; fail if the committed files differ from the generated files
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    files::write(&shell::workspace()?, &generate()?, options.check)
}

/// The folder of the kernels' sources, of their PTX, and of the list of hashes.
const KERNELS: &str = "peer-kernels/kernels";
/// The PTX of all units in one frame of zstd: the units share most of their text.
const PACKED: &str = "kernels.ptx.zst";
/// SHA-256 of [`PACKED`] and of each source, in the format of `sha256sum`.
const SUMS: &str = "SHA256SUMS";
/// The compression level: the highest.
const LEVEL: i32 = 22;

const EXAMPLE: &str = "symm-mem/examples/user_kernel";

/// One source to compile.
struct Job {
    folder: &'static str,
    source: &'static str,
    /// Name of the unit.
    name: &'static str,
    defines: Vec<String>,
}

fn job(unit: &Unit) -> Job {
    let common = defines().into_iter().map(|(name, value)| format!("{name}={value}"));
    let own = unit.defines.iter().map(|define| (*define).to_owned());
    Job { folder: KERNELS, source: unit.source, name: unit.name, defines: common.chain(own).collect() }
}

fn generate() -> Result<Files> {
    let root = shell::workspace()?;
    let folder = root.join(KERNELS);
    let headers = headers_of(&folder)?;
    let [place] = headers::fetch(&NVRTC, [Part::Library])?;
    let compiler = Nvrtc::load(&headers::find(&place, NVRTC_LIBRARY)?)?;
    let compile =
        |job: &Job| compiler.compile(&root, job, &headers).with_context(|| format!("compiling {}", job.name));
    let units = UNITS.iter().map(|unit| compile(&job(unit))).collect::<Result<Vec<_>>>()?;
    let packed = zstd::bulk::compress(units.join(PTX_SEPARATOR).as_bytes(), LEVEL)?;
    let sums = sums(&folder, &packed)?;
    let example = "strided_gather";
    let text =
        compile(&Job { folder: EXAMPLE, source: "strided_gather.cu", name: example, defines: Vec::new() })?;
    let generated = [
        (Path::new(KERNELS).join(PACKED), packed),
        (Path::new(KERNELS).join(SUMS), sums.into_bytes()),
        (Path::new(EXAMPLE).join(example).with_extension("ptx"), text.into_bytes()),
    ];
    Ok(Files::from(generated))
}

/// The list of hashes: of every source in the folder and of the packed PTX.
fn sums(folder: &Path, packed: &[u8]) -> Result<String> {
    let mut files = vec![(PACKED.to_owned(), packed.to_vec())];
    for name in sources(folder)? {
        let contents = fs::read(folder.join(&name)).with_context(|| format!("reading {name}"))?;
        files.push((name, contents));
    }
    let hash = |bytes: &[u8]| Hash::hash(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Ok(files.iter().map(|(name, contents)| format!("{}  {name}\n", hash(contents))).collect())
}

/// The names of the sources and headers in the folder, in order.
fn sources(folder: &Path) -> Result<Vec<String>> {
    let listed = fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))?;
    let names = listed.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.retain(|name| name.ends_with(".cu") || name.ends_with(".cuh"));
    names.sort();
    Ok(names)
}

/// A source text and the name by which others include it.
struct Source {
    name: CString,
    text: CString,
}

impl Source {
    fn read(folder: &Path, name: &str) -> Result<Self> {
        let place = folder.join(name);
        let text = fs::read(&place).with_context(|| format!("reading {}", place.display()))?;
        Ok(Self { name: CString::new(name)?, text: CString::new(text)? })
    }
}

fn headers_of(folder: &Path) -> Result<Vec<Source>> {
    let names = sources(folder)?;
    names.iter().filter(|name| name.ends_with(".cuh")).map(|name| Source::read(folder, name)).collect()
}

/// NVRTC's handle of a program.
type Program = *mut c_void;

/// NVIDIA's compiler from CUDA C++ to PTX, with the required functions as its header declares them.
struct Nvrtc {
    library: Library,
}

/// Loads a function of NVRTC by its name.
macro_rules! nvrtc {
    ($self:ident.$name:ident: fn($($parameter:ty),*) -> $result:ty) => {{
        // SAFETY: the signature is the one of NVRTC's header.
        unsafe {
            $self.library.get::<unsafe extern "C" fn($($parameter),*) -> $result>(stringify!($name).as_bytes())
        }
        .with_context(|| format!("{} of NVRTC", stringify!($name)))?
    }};
}

impl Nvrtc {
    fn load(path: &Path) -> Result<Self> {
        // SAFETY: NVIDIA's library, of the pinned hash; loading it runs its own set-up and nothing of ours.
        let library = unsafe { Library::new(path) }.with_context(|| format!("loading {}", path.display()))?;
        Ok(Self { library })
    }

    fn compile(&self, root: &Path, job: &Job, headers: &[Source]) -> Result<String> {
        let source = Source::read(&root.join(job.folder), job.source)?;
        let (texts, names): (Vec<_>, Vec<_>) =
            headers.iter().map(|header| (header.text.as_ptr(), header.name.as_ptr())).unzip();
        let create = nvrtc!(self.nvrtcCreateProgram: fn(
            *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        ) -> c_int);
        let mut program = std::ptr::null_mut();
        let count = c_int::try_from(headers.len())?;
        // SAFETY: texts that end with NUL, arrays of as many as are told; all outlive the call, which copies them.
        let code = unsafe {
            create(
                &mut program,
                source.text.as_ptr(),
                source.name.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", code)?;
        let compiled = self.compile_program(program, job);
        let destroy = nvrtc!(self.nvrtcDestroyProgram: fn(*mut Program) -> c_int);
        // SAFETY: made above, and used by nobody after this.
        self.check("nvrtcDestroyProgram", unsafe { destroy(&mut program) })?;
        compiled
    }

    fn compile_program(&self, program: Program, job: &Job) -> Result<String> {
        let (major, minor) = LEAST_CAPABILITY;
        let mut options = vec![format!("--gpu-architecture=compute_{major}{minor}")];
        // The host implementations of the kernels round after each step, so fused multiply-add is disabled.
        options.extend(["--std=c++17", "--fmad=false"].map(str::to_owned));
        options.extend(job.defines.iter().map(|define| format!("--define-macro={define}")));
        let options = options.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let compile = nvrtc!(self.nvrtcCompileProgram: fn(Program, c_int, *const *const c_char) -> c_int);
        // SAFETY: a live program; as many texts as are told, which outlive the call.
        let code = unsafe { compile(program, c_int::try_from(options.len())?, options.as_ptr()) };
        let log = self.text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
        self.check("nvrtcCompileProgram", code).with_context(|| log.trim().to_owned())?;
        ensure!(log.trim().is_empty(), "the compiler warns:\n{}", log.trim());
        let text = self.text(program, "nvrtcGetPTXSize", "nvrtcGetPTX")?;
        Ok(text.trim_end().to_owned() + "\n")
    }

    /// Reads a text by two functions: one returns its size, NUL included, the other the text.
    fn text(&self, program: Program, size: &str, get: &str) -> Result<String> {
        type Ask<T> = unsafe extern "C" fn(Program, *mut T) -> c_int;
        // SAFETY: both have this signature, by NVRTC's header.
        let (ask_size, ask_text) = unsafe {
            (self.library.get::<Ask<usize>>(size.as_bytes())?, self.library.get::<Ask<u8>>(get.as_bytes())?)
        };
        let mut bytes = 0;
        // SAFETY: a live program; writes one number, to a local that outlives the call.
        self.check(size, unsafe { ask_size(program, &mut bytes) })?;
        let mut text = vec![0_u8; bytes];
        // SAFETY: a live program; writes as many bytes as it told before.
        self.check(get, unsafe { ask_text(program, text.as_mut_ptr()) })?;
        Ok(CStr::from_bytes_until_nul(&text).unwrap_or_default().to_str()?.to_owned())
    }

    fn check(&self, function: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let name = nvrtc!(self.nvrtcGetErrorString: fn(c_int) -> *const c_char);
        // SAFETY: takes any number, and gives a text that is the library's own.
        let name = unsafe { CStr::from_ptr(name(code)) };
        bail!("{function}: {}", name.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_kernels_have_the_committed_hashes() {
        let folder = shell::workspace().unwrap().join(KERNELS);
        let packed = fs::read(folder.join(PACKED)).unwrap();
        let committed = fs::read_to_string(folder.join(SUMS)).unwrap();
        assert_eq!(sums(&folder, &packed).unwrap(), committed, "run `cargo xtask codegen kernels`");
        let mut other = packed;
        other[0] ^= 1;
        assert_ne!(sums(&folder, &other).unwrap(), committed);
    }
}
