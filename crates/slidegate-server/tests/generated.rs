//! The code for Envoy's messages is committed, so that a build needs no protobuf compiler. This test compares it with
//! the output for `proto/`; `SLIDEGATE_BLESS=1 cargo test --test generated` regenerates it.
#![expect(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for tests")]

use std::fs;
use std::path::{Path, PathBuf};

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};

const PROTO: &str = "envoy/service/ratelimit/v3/rls.proto";
const DESCRIPTORS: &str = "descriptors.bin";

/// Generates all files into `folder`.
fn generate(folder: &Path) {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let descriptors = protox::compile([PROTO], [protos]).unwrap();
    fs::write(
        folder.join(DESCRIPTORS),
        prost::Message::encode_to_vec(&without_source_info(descriptors.clone())),
    )
    .unwrap();
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .out_dir(folder)
        .compile_fds(with_bytes_fields(descriptors))
        .unwrap();
}

/// String fields that carry input of clients and are generated as bytes. Envoy does not check this input for UTF-8; a
/// message with an invalid string would be rejected as a whole, and Envoy would let the request through. Both types are
/// the same on the wire. Reflection still describes the fields as strings.
const CLIENT_FIELDS: [(&str, &str); 3] =
    [("RateLimitRequest", "domain"), ("Entry", "key"), ("Entry", "value")];

fn with_bytes_fields(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
    let mut changed = 0;
    let messages = descriptors.file.iter_mut().flat_map(|file| &mut file.message_type);
    for message in messages {
        changed += use_bytes(message) + message.nested_type.iter_mut().map(use_bytes).sum::<usize>();
    }
    assert_eq!(changed, CLIENT_FIELDS.len());
    descriptors
}

/// Changes the type of the client fields of a message to bytes and returns their number.
fn use_bytes(message: &mut DescriptorProto) -> usize {
    let fields = message.field.iter_mut();
    let client_fields = fields.filter(|field| {
        CLIENT_FIELDS.contains(&(message.name.as_deref().unwrap(), field.name.as_deref().unwrap()))
    });
    client_fields.map(|field| field.set_type(Type::Bytes)).count()
}

/// Removes comments and source positions, which reflection does not need.
fn without_source_info(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
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
fn committed_code_is_up_to_date() {
    let fresh = tempfile::tempdir().unwrap();
    generate(fresh.path());
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocols/rls/generated");
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
        assert!(is_same, "{} is not the output for proto/", name.display());
    }
}
