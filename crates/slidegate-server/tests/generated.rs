//! The code for Envoy's messages is committed, so that nobody who builds the service needs a compiler for them. It must
//! be what that compiler makes of `proto/` today; `SLIDEGATE_BLESS=1 cargo test --test generated` writes it anew.
#![expect(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for tests")]

use std::fs;
use std::path::{Path, PathBuf};

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};

const PROTO: &str = "envoy/service/ratelimit/v3/rls.proto";
const DESCRIPTORS: &str = "descriptors.bin";

/// Every file, in a folder of its own, that the compiler makes.
fn generate(folder: &Path) {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let descriptors = protox::compile([PROTO], [protos]).unwrap();
    fs::write(folder.join(DESCRIPTORS), prost::Message::encode_to_vec(&without_places(descriptors.clone())))
        .unwrap();
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .out_dir(folder)
        .compile_fds(with_any_bytes(descriptors))
        .unwrap();
}

/// Envoy copies what clients send into these texts, whether it is UTF-8 or not. A message with a text that is not would be
/// refused as a whole, and Envoy would let the request through; hence they are read as bytes, which are the same on the
/// wire. Reflection calls them what Envoy does.
const OF_CLIENTS: [(&str, &str); 3] = [("RateLimitRequest", "domain"), ("Entry", "key"), ("Entry", "value")];

fn with_any_bytes(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
    let mut changed = 0;
    let messages = descriptors.file.iter_mut().flat_map(|file| &mut file.message_type);
    for message in messages {
        changed += of_clients(message) + message.nested_type.iter_mut().map(of_clients).sum::<usize>();
    }
    assert_eq!(changed, OF_CLIENTS.len());
    descriptors
}

/// Makes bytes of such fields, and says of how many.
fn of_clients(message: &mut DescriptorProto) -> usize {
    let fields = message.field.iter_mut();
    let of_clients = fields.filter(|field| {
        OF_CLIENTS.contains(&(message.name.as_deref().unwrap(), field.name.as_deref().unwrap()))
    });
    of_clients.map(|field| field.set_type(Type::Bytes)).count()
}

/// Who asks for reflection has no use for comments and columns.
fn without_places(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    descriptors
}

fn names(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
    names.sort();
    names
}

#[test]
fn what_is_committed_is_what_is_generated() {
    let fresh = tempfile::tempdir().unwrap();
    generate(fresh.path());
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rls/generated");
    if std::env::var_os("SLIDEGATE_BLESS").is_some() {
        fs::remove_dir_all(&committed).unwrap();
        fs::create_dir(&committed).unwrap();
        for name in names(fresh.path()) {
            fs::copy(fresh.path().join(&name), committed.join(name)).unwrap();
        }
    }
    assert_eq!(names(&committed), names(fresh.path()));
    for name in names(&committed) {
        let is_same = fs::read(committed.join(&name)).unwrap() == fs::read(fresh.path().join(&name)).unwrap();
        assert!(is_same, "{} is not what proto/ says", name.display());
    }
}
