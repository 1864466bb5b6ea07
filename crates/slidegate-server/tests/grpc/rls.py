"""Independent client of the rate limit service: messages as Envoy defines them, compiled by protoc, sent by grpcio.

usage: rls.py wire|fuzz|drain|check|hold ADDRESS [CERTIFICATE_OF_THE_AUTHORITY]
"""

import pathlib
import random
import sys
import tempfile
import threading

import grpc
from grpc_tools import protoc

PROTO = """
syntax = "proto3";
package envoy.service.ratelimit.v3;
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";

message RateLimitRequest {
  string domain = 1;
  repeated Descriptor descriptors = 2;
  uint32 hits_addend = 3;
}
message Descriptor {
  message Entry { string key = 1; string value = 2; }
  message Override { uint32 requests_per_unit = 1; int32 unit = 2; }
  repeated Entry entries = 1;
  Override limit = 2;
  google.protobuf.UInt64Value hits_addend = 3;
  bool is_negative_hits = 4;
}
message RateLimitResponse {
  message RateLimit { uint32 requests_per_unit = 1; int32 unit = 2; string name = 3; }
  message Status {
    int32 code = 1;
    RateLimit current_limit = 2;
    uint32 limit_remaining = 3;
    google.protobuf.Duration duration_until_reset = 4;
  }
  message Header { string key = 1; string value = 2; }
  int32 overall_code = 1;
  repeated Status statuses = 2;
  repeated Header response_headers_to_add = 3;
  repeated Header request_headers_to_add = 4;
  bytes raw_body = 5;
  google.protobuf.Struct dynamic_metadata = 6;
}
"""
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
OK, OVER_LIMIT = 1, 2
MINUTE, YEAR, WEEK = 2, 6, 7
TIMEOUT_S = 30


def compiled():
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "rls.proto").write_text(PROTO)
    include = pathlib.Path(protoc.__file__).parent / "_proto"
    code = protoc.main(["protoc", f"-I{folder}", f"-I{include}", f"--python_out={folder}", "rls.proto"])
    assert code == 0
    sys.path.insert(0, str(folder))
    import rls_pb2

    return rls_pb2


def request(pb, descriptors, domain="shop", **more):
    message = pb.RateLimitRequest(domain=domain, **more)
    for entries in descriptors:
        descriptor = message.descriptors.add()
        for key, value in entries:
            descriptor.entries.add(key=key, value=value)
    return message


def wire(channel):
    pb = compiled()
    method = channel.unary_unary(METHOD, pb.RateLimitRequest.SerializeToString, pb.RateLimitResponse.FromString)
    call = lambda message: method(message, timeout=TIMEOUT_S)

    first = call(request(pb, [[("user", "a")], [("unknown", "")], [("user", "vip")], [("user", "a"), ("path", "/")]]))
    assert first.overall_code == OK, first
    assert [status.code for status in first.statuses] == [OK] * 4, first
    limit = first.statuses[0].current_limit
    assert (limit.requests_per_unit, limit.unit, limit.name) == (2, YEAR, "per-user"), first
    assert first.statuses[0].limit_remaining == 1
    assert 0 < first.statuses[0].duration_until_reset.seconds <= 366 * 86400
    assert not first.statuses[1].HasField("current_limit")
    assert first.statuses[2].limit_remaining == 2**32 - 1 and not first.statuses[2].HasField("current_limit")
    assert first.statuses[3].current_limit.unit == WEEK

    denied = call(request(pb, [[("user", "a")]], hits_addend=2))
    assert denied.overall_code == OVER_LIMIT and denied.statuses[0].code == OVER_LIMIT, denied
    headers = {header.key: header.value for header in denied.response_headers_to_add}
    assert headers["ratelimit-policy"] == '"per-user";q=2;w=31536000', headers
    assert int(headers["retry-after"]) > 0 and headers["content-type"] == "text/plain; charset=utf-8"
    assert denied.raw_body.startswith(b"rate limit exceeded: per-user; retry in "), denied

    one = request(pb, [[("user", "a")]])
    one.descriptors[0].hits_addend.value = 0
    assert call(one).statuses[0].limit_remaining == 1, "an explicit 0 is a peek"
    one.descriptors[0].hits_addend.value = 1
    one.descriptors[0].is_negative_hits = True
    assert call(one).statuses[0].limit_remaining == 2
    over = request(pb, [[("user", "vip")]])
    over.descriptors[0].limit.requests_per_unit = 5
    over.descriptors[0].limit.unit = MINUTE
    assert call(over).statuses[0].current_limit.requests_per_unit == 5

    for message, words in [
        (request(pb, []), "descriptors: 0 are given"),
        (request(pb, [[]], domain=""), "domain"),
        (request(pb, [[]] * 101), "descriptors: 101 are given"),
    ]:
        assert_rejected(lambda: call(message), grpc.StatusCode.INVALID_ARGUMENT, words)
    large = request(pb, [[("user", "x" * 1_000_000)]] * 2)
    assert [call(large).overall_code for _ in range(2)] == [OK, OVER_LIMIT], "large values are limited, too"
    too_large = request(pb, [[("user", "x" * 5_000_000)]])
    assert_rejected(lambda: call(too_large), grpc.StatusCode.OUT_OF_RANGE, "4194304")
    any_bytes = channel.unary_unary(METHOD, bytes, pb.RateLimitResponse.FromString)
    for value in [b"\xff", b"\xfe"]:
        message = request(pb, [[("user", "?")]]).SerializeToString().replace(b"?", value)
        codes = [any_bytes(message, timeout=TIMEOUT_S).overall_code for _ in range(3)]
        assert codes == [OK, OK, OVER_LIMIT], "values that are not UTF-8 are counted byte by byte"
    unknown = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/Other", bytes, bytes)
    assert_rejected(lambda: unknown(b"", timeout=TIMEOUT_S), grpc.StatusCode.UNIMPLEMENTED, "")
    health(channel)
    reflection(channel)


def assert_rejected(call, code, words):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code and words in error.details(), error
    else:
        raise AssertionError(f"{words}: not rejected")


def health(channel):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    stub = health_pb2_grpc.HealthStub(channel)
    # Clients of envoyproxy/ratelimit check the service name `ratelimit`.
    for service in ["", SERVICE, "ratelimit"]:
        response = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    other = health_pb2.HealthCheckRequest(service="other")
    assert_rejected(lambda: stub.Check(other, timeout=TIMEOUT_S), grpc.StatusCode.NOT_FOUND, "")


def reflection(channel):
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    database = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in database.get_services() and "grpc.health.v1.Health" in database.get_services()
    service = DescriptorPool(database).FindServiceByName(SERVICE)
    message = service.FindMethodByName("ShouldRateLimit").input_type
    assert [(field.name, field.number) for field in message.fields] == [
        ("domain", 1),
        ("descriptors", 2),
        ("hits_addend", 3),
    ]


def mutated(random, message):
    message = bytearray(message)
    for _ in range(random.choice([1, 1, 1, 2, 6])):
        kind, index = random.randrange(5), random.randrange(len(message) + 1)
        if kind == 0 and message:
            message[index % len(message)] ^= 1 << random.randrange(8)
        elif kind == 1:
            message[index:index] = random.randbytes(random.randint(1, 8))
        elif kind == 2:
            del message[index : index + random.randint(1, 8)]
        elif kind == 3:
            message[index:index] = message[:index]
        else:
            message[index:index] = b"\xff" * random.randint(1, 12)
    return bytes(message[:60_000])


def fuzz(channel):
    """Sends mutated messages. Each gets a response or a rejection, and the server keeps serving."""
    seeds = [file.read_bytes() for file in sorted((pathlib.Path(__file__).parent / "corpus").iterdir())]
    assert seeds
    call = channel.unary_unary(METHOD, bytes, bytes)
    allowed = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}
    generator, served, rejected = random.Random(8), 0, 0
    pending = []
    for number in range(4000):
        message = seeds[number] if number < len(seeds) else mutated(generator, generator.choice(seeds))
        pending.append((message, call.future(message, timeout=TIMEOUT_S)))
        if len(pending) < 50:
            continue
        for message, future in pending:
            try:
                future.result()
                served += 1
            except grpc.RpcError as error:
                assert error.code() in allowed, (error, message.hex())
                rejected += 1
        pending = []
    assert served > 100 and rejected > 100, (served, rejected)
    health(channel)


def drain(channel):
    """Prints each status of a health watch until the server ends it."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    statuses = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    for response in statuses:
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
        print(name, flush=True)


def check(channel):
    """Prints the overall code or the error status of one request."""
    pb = compiled()
    call = channel.unary_unary(METHOD, pb.RateLimitRequest.SerializeToString, pb.RateLimitResponse.FromString)
    try:
        print(call(request(pb, [[("user", "a")]]), timeout=TIMEOUT_S).overall_code)
    except grpc.RpcError as error:
        print(error.code().name)


def hold(channel):
    """Opens endless reflection streams and sends a too large request; the server ends the streams."""
    for version in ["v1", "v1alpha"]:
        method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        reflect = channel.stream_stream(method, bytes, bytes)
        done = threading.Event()

        def unending():
            yield b"\x3a\x01*"
            done.wait()

        (services,) = list(reflect(unending(), timeout=TIMEOUT_S))
        assert SERVICE.encode() in services, services
        done.set()
        # A request with a name of 5000 bytes. A server that reads it responds NOT_FOUND.
        assert list(reflect(iter([b"\x1a\x88\x27" + b"x" * 5000]), timeout=TIMEOUT_S)) == []


def channel_to(address, authority=None):
    if authority is None:
        return grpc.insecure_channel(address)
    credentials = grpc.ssl_channel_credentials(pathlib.Path(authority).read_bytes())
    return grpc.secure_channel(address, credentials)


with channel_to(*sys.argv[2:]) as channel:
    {"wire": wire, "fuzz": fuzz, "drain": drain, "check": check, "hold": hold}[sys.argv[1]](channel)
