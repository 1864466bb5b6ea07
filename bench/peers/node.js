// rate-limiter-flexible over ioredis: node node.js PORT DECISIONS [pipelined]
// 64 callers, 100,000 keys, 100 a minute for each. Prints decisions per second and the versions of the libraries.
const { RateLimiterRedis } = require("rate-limiter-flexible");
const Redis = require("ioredis");

const [port, decisions, variant] = process.argv.slice(2);
const client = new Redis({ port: Number(port), enableAutoPipelining: variant === "pipelined" });
const limiter = new RateLimiterRedis({ storeClient: client, points: 100, duration: 60 });

async function consume(count) {
  let left = count;
  const caller = async () => {
    while (left-- > 0) {
      const number = Math.floor(Math.random() * 100_000);
      await limiter.consume(`user:${String(number).padStart(7, "0")}`).catch((denied) => {
        if (denied instanceof Error) throw denied;
      });
    }
  };
  await Promise.all(Array.from({ length: 64 }, caller));
}

async function main() {
  await consume(2_000); // warms up the JIT and the server's script cache before the clock starts
  const start = process.hrtime.bigint();
  await consume(Number(decisions));
  const seconds = Number(process.hrtime.bigint() - start) / 1e9;
  const version = (name) => `${name} ${require(`${name}/package.json`).version}`;
  console.log(decisions / seconds, `${version("rate-limiter-flexible")}, ${version("ioredis")}, node ${process.versions.node}`);
  client.disconnect();
}

main();
