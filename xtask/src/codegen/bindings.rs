//! The output of bindgen for a header, split into enumerations, functions, layout assertions, and the rest.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{Expr, ForeignItem, Ident, ImplItem, Item, ReturnType, Type};

use crate::headers::{self, Part};
use crate::pins;

/// One C function.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Parameters, `name: type`, separated by commas.
    pub(crate) parameters: String,
    /// The result, `-> type`, or nothing.
    pub(crate) result: String,
}

impl Function {
    /// The parameters' types, without their names.
    pub(crate) fn types(&self) -> Vec<&str> {
        self.parameters.split(", ").filter_map(|parameter| Some(parameter.split_once(": ")?.1)).collect()
    }
}

/// One C enumeration.
pub(crate) struct Enumeration {
    pub(crate) name: String,
    /// The integer that carries it, as Rust names it.
    pub(crate) repr: String,
    pub(crate) constants: Vec<(String, String)>,
}

/// A header's contents.
#[derive(Default)]
pub(crate) struct Bindings {
    pub(crate) functions: Vec<Function>,
    pub(crate) enumerations: Vec<Enumeration>,
    /// Constants from macros.
    pub(crate) constants: Vec<Item>,
    /// Structures, unions, handles and aliases.
    pub(crate) types: Vec<Item>,
    /// Structures whose default is all bytes zero.
    pub(crate) zeroed: Vec<String>,
    /// Assertions on sizes and offsets.
    pub(crate) assertions: Vec<Item>,
    /// The asserted values: `Size of CUuuid_st` is 16.
    pub(crate) layouts: BTreeMap<String, u64>,
}

impl Bindings {
    /// The constants from macros, with their values.
    pub(crate) fn macros(&self) -> impl Iterator<Item = (String, Result<i128>)> {
        self.constants.iter().filter_map(|item| match item {
            Item::Const(item) => {
                let text = item.expr.to_token_stream().to_string().replace(' ', "");
                let value = text.parse().with_context(|| format!("{} is {text}, no number", item.ident));
                Some((item.ident.to_string(), value))
            }
            _ => None,
        })
    }
}

/// Points bindgen to the pinned libclang.
pub(crate) fn load_libclang() -> Result<()> {
    let [folder] = headers::fetch(&pins::LIBCLANG, [Part::Library])?;
    let library = headers::find(&folder, "libclang.so")?;
    // SAFETY: `codegen` has started no other thread that could read the environment.
    unsafe { std::env::set_var("LIBCLANG_PATH", library.parent().context("libclang lies in a folder")?) };
    Ok(())
}

/// Settings for reading a header.
pub(crate) struct Recipe<'a> {
    pub(crate) header: &'a Path,
    /// Only declarations in files that match this are kept, with the types that they need.
    pub(crate) file: &'a str,
    /// Structures that match this get no default, because all bytes zero is not a valid one.
    pub(crate) no_default: &'a str,
    /// Types that match this are written by hand, and not generated.
    pub(crate) by_hand: &'a str,
    /// Arguments for clang.
    pub(crate) arguments: &'a [String],
}

/// Reads a header.
pub(crate) fn read(recipe: &Recipe) -> Result<Bindings> {
    let Recipe { header, file, no_default, by_hand, arguments } = *recipe;
    let text = bindgen::Builder::default()
        .header(header.to_string_lossy())
        .clang_args(["-nostdinc".to_owned(), format!("-I{}", headers::standin("c")?.display())])
        .clang_args(arguments)
        .allowlist_file(file)
        .newtype_enum(".*")
        .prepend_enum_name(false)
        .generate_comments(false)
        .derive_default(true)
        .no_default(no_default)
        .blocklist_type(by_hand)
        .derive_debug(true)
        .impl_debug(true)
        .layout_tests(true)
        .use_core()
        .rust_target(bindgen::RustTarget::stable(88, 0).map_err(|error| anyhow::anyhow!("{error}"))?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::None)
        .generate()
        .with_context(|| format!("bindgen could not read {}", header.display()))?
        .to_string();
    let file: syn::File = syn::parse_str(&text).context("parsing what bindgen wrote")?;
    let renames = tags(&file.items);
    let file: syn::File = syn::parse2(rename(file.into_token_stream(), &renames))?;
    sort(file.items)
}

/// Returns the tags that a `pub use tag as Name` renames. Programs use the name.
fn tags(items: &[Item]) -> HashMap<String, String> {
    let mut renames = HashMap::new();
    for item in items {
        if let Item::Use(item) = item
            && let syn::UseTree::Path(path) = &item.tree
            && let syn::UseTree::Rename(alias) = &*path.tree
        {
            renames.entry(alias.ident.to_string()).or_insert_with(|| alias.rename.to_string());
        }
    }
    renames
}

fn rename(tokens: TokenStream, renames: &HashMap<String, String>) -> TokenStream {
    tokens
        .into_iter()
        .map(|token| match token {
            TokenTree::Group(group) => {
                let mut renamed = proc_macro2::Group::new(group.delimiter(), rename(group.stream(), renames));
                renamed.set_span(group.span());
                TokenTree::Group(renamed)
            }
            TokenTree::Ident(ident) => match renames.get(&ident.to_string()) {
                Some(name) => TokenTree::Ident(Ident::new(name, ident.span())),
                None => TokenTree::Ident(ident),
            },
            TokenTree::Literal(literal) => {
                // Assertions name types in text.
                let text = literal.to_string();
                match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
                    Some(inner) => {
                        let words: Vec<_> = inner
                            .split(' ')
                            .map(|word| renames.get(word).map_or(word, String::as_str))
                            .collect();
                        TokenTree::Literal(proc_macro2::Literal::string(&words.join(" ")))
                    }
                    None => TokenTree::Literal(literal),
                }
            }
            other => other,
        })
        .collect()
}

fn sort(items: Vec<Item>) -> Result<Bindings> {
    let mut bindings = Bindings::default();
    let mut values: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut rest = Vec::new();
    for item in items {
        match item {
            Item::ForeignMod(block) => {
                for item in block.items {
                    match item {
                        ForeignItem::Fn(function) => bindings.functions.push(self::function(&function)?),
                        ForeignItem::Static(_) => {}
                        other => bail!("unexpected foreign item {}", other.to_token_stream()),
                    }
                }
            }
            Item::Impl(block) if block.trait_.is_none() && constants_only(&block.items) => {
                let name = block.self_ty.to_token_stream().to_string();
                for item in block.items {
                    let ImplItem::Const(constant) = item else { continue };
                    let Expr::Call(call) = constant.expr else {
                        bail!("{name}: a constant that is no value")
                    };
                    let value = call.args.to_token_stream().to_string().replace(' ', "");
                    values.entry(name.clone()).or_default().push((constant.ident.to_string(), value));
                }
            }
            Item::Use(item) => rest.extend(alias(&item)?),
            other => rest.push(other),
        }
    }
    for item in rest {
        match item {
            Item::Struct(item) if values.contains_key(&item.ident.to_string()) => {
                let repr = item.fields.iter().next().context("an enumeration holds an integer")?.ty.clone();
                bindings.enumerations.push(Enumeration {
                    constants: values.remove(&item.ident.to_string()).unwrap_or_default(),
                    name: item.ident.to_string(),
                    repr: integer(&repr)?.to_owned(),
                });
            }
            Item::Const(item) if item.ident == "_" => {
                bindings.layouts.extend(asserted(&item.expr)?);
                bindings.assertions.push(Item::Const(item));
            }
            Item::Const(item) => bindings.constants.push(Item::Const(item)),
            other => match zeroed(&other) {
                Some(name) => bindings.zeroed.push(name),
                None => bindings.types.push(other),
            },
        }
    }
    if let Some(name) = values.keys().next() {
        bail!("constants of {name}, which is no enumeration");
    }
    Ok(bindings)
}

/// Returns a further name of an enumeration; `None` for the name that the enumeration itself has taken over.
fn alias(item: &syn::ItemUse) -> Result<Option<Item>> {
    let syn::UseTree::Path(path) = &item.tree else { bail!("an import that is no alias") };
    let syn::UseTree::Rename(alias) = &*path.tree else { bail!("an import that is no alias") };
    let (name, target) = (&alias.rename, &alias.ident);
    Ok((name != target).then(|| syn::parse_quote!(pub type #name = #target;)))
}

/// The lines `["Size of X"][size_of::<X>() - 8usize];` of a block, taken apart.
fn asserted(block: &Expr) -> Result<Vec<(String, u64)>> {
    let Expr::Block(block) = block else { bail!("an assertion that is no block") };
    let assertion = |statement: &syn::Stmt| {
        let syn::Stmt::Expr(Expr::Index(line), _) = statement else { return None };
        let (Expr::Array(name), Expr::Binary(difference)) = (&*line.expr, &*line.index) else { return None };
        let Some(Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(name), .. })) = name.elems.first() else {
            return None;
        };
        let Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(value), .. }) = &*difference.right else {
            return None;
        };
        Some((name.value(), value.base10_parse().ok()?))
    };
    block.block.stmts.iter().map(|line| assertion(line).context("an assertion in another form")).collect()
}

/// Returns the type that an item gives a zeroed `Default`.
fn zeroed(item: &Item) -> Option<String> {
    let Item::Impl(block) = item else { return None };
    let (path, _) = block.trait_.as_ref()?;
    let zeroed = path.is_ident("Default") && block.to_token_stream().to_string().contains("write_bytes");
    zeroed.then(|| block.self_ty.to_token_stream().to_string())
}

fn constants_only(items: &[ImplItem]) -> bool {
    !items.is_empty() && items.iter().all(|item| matches!(item, ImplItem::Const(_)))
}

fn integer(ty: &Type) -> Result<&'static str> {
    let text = ty.to_token_stream().to_string();
    Ok(match text.rsplit(' ').next().unwrap_or_default() {
        "c_uchar" | "u8" => "u8",
        "c_uint" | "u32" => "u32",
        "c_int" | "i32" => "i32",
        "c_ulong" | "c_ulonglong" | "u64" => "u64",
        "c_long" | "c_longlong" | "i64" => "i64",
        other => bail!("an enumeration over {other}"),
    })
}

fn function(function: &syn::ForeignItemFn) -> Result<Function> {
    let mut parameters = Vec::new();
    for parameter in &function.sig.inputs {
        let syn::FnArg::Typed(parameter) = parameter else { bail!("a function with a receiver") };
        let name = parameter.pat.to_token_stream().to_string();
        parameters.push(format!("{name}: {}", text(&parameter.ty)));
    }
    let result = match &function.sig.output {
        ReturnType::Default => String::new(),
        ReturnType::Type(_, ty) => format!(" -> {}", text(ty)),
    };
    Ok(Function { name: function.sig.ident.to_string(), parameters: parameters.join(", "), result })
}

/// Formats a type on one line.
fn text(ty: &Type) -> String {
    let file = syn::parse2(quote!(type T = #ty;)).expect("an alias is an item");
    let text = prettyplease::unparse(&file);
    let text = text.trim().trim_start_matches("type T =").trim().trim_end_matches(';');
    let text: Vec<_> = text.split_whitespace().collect();
    shorten(&text.join(" ")).replace("( ", "(").replace(", )", ")").replace(",)", ")")
}

/// Removes paths of items that the generated files import.
pub(crate) fn shorten(text: &str) -> String {
    text.replace("::core::ffi::", "").replace("::core::option::", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of bindgen for a small header, sorted.
    fn sorted() -> Bindings {
        let file: syn::File = syn::parse_quote! {
            impl mode { pub const MODE_A: mode = mode(0); pub const MODE_B: mode = mode(-1); }
            #[repr(transparent)]
            pub struct mode(pub ::core::ffi::c_int);
            pub use self::mode as mode_t;
            pub const LIMIT: u32 = 64;
            pub struct plain_st { pub at: *mut ::core::ffi::c_void }
            const _: () = {
                ["Size of plain_st"][::core::mem::size_of::<plain_st>() - 8usize];
                ["Offset of field: plain_st::at"][::core::mem::offset_of!(plain_st, at) - 0usize];
            };
            impl Default for plain_st {
                fn default() -> Self { unsafe { ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1) } }
            }
            unsafe extern "C" {
                pub fn call(at: *mut plain_st, back: ::core::option::Option<unsafe extern "C" fn(at: mode)>) -> mode;
                pub fn silent();
            }
        };
        sort(file.items).unwrap()
    }

    #[test]
    fn each_item_finds_its_place() {
        let bindings = sorted();
        let [Enumeration { name, repr, constants }] = &bindings.enumerations[..] else {
            panic!("one enumeration")
        };
        assert_eq!((name.as_str(), repr.as_str()), ("mode", "i32"));
        let value = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(*constants, [value("MODE_A", "0"), value("MODE_B", "-1")]);
        assert_eq!(bindings.layouts["Size of plain_st"], 8);
        assert_eq!(bindings.layouts["Offset of field: plain_st::at"], 0);
        assert_eq!(bindings.zeroed, ["plain_st"]);
        assert_eq!(bindings.macros().map(|(name, _)| name).collect::<Vec<_>>(), ["LIMIT"]);
        assert_eq!((bindings.types.len(), bindings.assertions.len()), (2, 1));
    }

    #[test]
    fn a_function_is_written_on_one_line_without_paths() {
        let [call, silent] = &sorted().functions[..] else { panic!("two functions") };
        assert_eq!(call.types(), ["*mut plain_st", "Option<unsafe extern \"C\" fn(at: mode)>"]);
        assert_eq!(call.result, " -> mode");
        assert_eq!((silent.parameters.as_str(), silent.result.as_str()), ("", ""));
    }

    #[test]
    fn a_tag_takes_the_name_that_people_write_everywhere() {
        let file: syn::File = syn::parse_quote! {
            pub use self::tag_enum as Name;
            const _: () = { ["Size of tag_enum"][size_of::<tag_enum>() - 4usize]; };
            pub struct other { pub tag_enum_like: tag_enum }
        };
        let renames = tags(&file.items);
        let text = rename(file.into_token_stream(), &renames).to_string();
        assert!(text.contains("\"Size of Name\"") && text.contains("tag_enum_like : Name"), "{text}");
    }

    #[test]
    fn what_bindgen_has_not_written_so_far_is_an_error() {
        let fails = |file: syn::File| sort(file.items).is_err();
        assert!(fails(syn::parse_quote! { pub use self::a; }));
        assert!(fails(syn::parse_quote! { const _: () = { assert!(true); }; }));
        assert!(fails(syn::parse_quote! { impl a { pub const B: a = a(1); } }));
        assert!(fails(
            syn::parse_quote! { impl a { pub const B: a = a(1); } pub struct a(pub ::core::ffi::c_float); }
        ));
    }
}
