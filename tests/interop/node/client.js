'use strict';

// The Node client ali-ons, driven line by line; see ../programs.py. Argument: the name server.

const readline = require('readline');
const { Producer, Consumer, Message } = require('ali-ons');

const nameSrv = process.argv[2];
const producers = new Map();
const consumers = new Map();

const say = level => (...text) => process.stderr.write(`${level} ${require('util').format(...text)}\n`);
const logger = { debug() {}, info() {}, warn: say('WARN'), error: say('ERROR') };

const options = {
  nameSrv,
  // Asked only for a name server list over HTTP, which a given name server makes unnecessary.
  httpclient: { request() { throw new Error('no HTTP request was expected'); } },
  logger,
  sendMsgTimeout: 60000,
  pollNameServerInteval: 1000,
  heartbeatBrokerInterval: 1000,
  rebalanceInterval: 1000,
  persistConsumerOffsetInterval: 500,
  pullTimeDelayMillsWhenException: 500,
  accessKey: process.env.CLIENT_ACCESS_KEY,
  secretKey: process.env.CLIENT_SECRET_KEY,
};

function emit(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

function build(topic, item, shard) {
  const message = new Message(topic, item.tag, item.body);
  if (item.tag === undefined) {
    delete message.properties.TAGS;
  }
  if (item.keys !== undefined) {
    message.keys = [ item.keys ];
  }
  if (item.delay !== undefined) {
    message.delayTimeLevel = item.delay;
  }
  if (shard !== undefined) {
    message.shardingKey = shard;
  }
  return Object.assign(message, { properties: { ...message.properties, ...item.properties } });
}

function result(sent) {
  return {
    status: sent.sendStatus,
    id: sent.msgId,
    queue: sent.messageQueue.queueId,
    offset: Number(sent.queueOffset),
  };
}

function received(message) {
  return {
    topic: message.topic,
    body: message.body.toString(),
    tag: message.tags === undefined ? null : message.tags,
    keys: message.keys === undefined ? null : message.keys,
    properties: message.properties,
    id: message.msgId,
    queue: message.queueId,
    offset: Number(message.queueOffset),
    reconsumed: message.reconsumeTimes,
    born_ms: Number(message.bornTimestamp),
    stored_ms: Number(message.storeTimestamp),
    now_ms: Date.now(),
  };
}

async function producer(group) {
  if (!producers.has(group)) {
    const made = new Producer({ ...options, producerGroup: group });
    made.on('error', error => logger.error('producer', error));
    await made.ready();
    producers.set(group, made);
  }
  return producers.get(group);
}

async function send(command) {
  const sender = await producer(command.group);
  const results = [];
  for (const item of command.messages) {
    const message = build(command.topic, item, command.style === 'ordered' ? command.shard : undefined);
    results.push(result(await sender.send(message)));
  }
  return results;
}

async function consume({ name, group, topic, expression, mode }) {
  const consumer = new Consumer({
    ...options,
    consumerGroup: group,
    instanceName: name,
    isBroadcast: mode === 'broadcast',
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.on('error', error => logger.error('consumer', error));
  consumer.subscribe(topic, expression, async message => {
    emit({ event: 'message', consumer: name, ...received(message) });
    const fails = message.body.toString().startsWith('retry') && message.reconsumeTimes === 0;
    return fails ? Consumer.ACTION_RETRY : undefined;
  });
  await consumer.ready();
  consumers.set(name, consumer);
}

async function stop({ name }) {
  await consumers.get(name).close();
  consumers.delete(name);
}

const commands = { send, consume, stop };

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    if (command.do === 'quit') {
      break;
    }
    try {
      emit({ reply: command.id, result: await commands[command.do](command) });
    } catch (error) {
      emit({ reply: command.id, error: String(error) });
    }
  }
  process.exit(0);
}

process.on('unhandledRejection', error => logger.error('unhandled', error));
main();
