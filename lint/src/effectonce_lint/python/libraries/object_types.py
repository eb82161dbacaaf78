"""Object types: the tags of the objects that the constructors, factories and annotations of libraries stand for.

A tag names the kind of object, whatever library it comes from: "redis" is any client of Redis, "sql.conn" any
connection. The other tables of this package are keyed by tags, so a new library needs an entry only here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: tag: for each package (by its first name) the callables that return such an object, and its classes.
_TYPES = """
redis               redis:Redis,StrictRedis,RedisCluster,from_url
                    aioredis:Redis,StrictRedis,from_url,create_redis_pool,create_redis
                    valkey:Valkey,StrictValkey,ValkeyCluster,from_url
                    fakeredis:FakeRedis,FakeStrictRedis,FakeAsyncRedis flask_redis:FlaskRedis
                    django_redis:get_redis_connection coredis:Redis,RedisCluster rediscluster:RedisCluster
redis.sentinel      redis:Sentinel valkey:Sentinel
cache               flask_caching:Cache pymemcache:Client,PooledClient,HashClient,RetryingClient pylibmc:Client
                    memcache:Client diskcache:Cache,FanoutCache aiocache:Cache,RedisCache,MemcachedCache
                    aiomcache:Client
lock                redis_lock:Lock redlock:Redlock aioredlock:Aioredlock pottery:Redlock
sql.conn            psycopg2:connect psycopg:connect,Connection,AsyncConnection pymysql:connect,Connection
                    MySQLdb:connect mysql:connect sqlite3:connect,Connection aiosqlite:connect,Connection
                    oracledb:connect pyodbc:connect cx_Oracle:connect aiomysql:connect aiopg:connect
                    sqlalchemy:Connection,AsyncConnection pg8000:connect mariadb:connect
sql.cursor          psycopg2:cursor psycopg:Cursor,AsyncCursor sqlite3:Cursor
sql.auto            asyncpg:connect,Connection databases:Database
sql.autopool        asyncpg:create_pool,Pool
sql.pool            psycopg_pool:ConnectionPool,AsyncConnectionPool
                    psycopg2:SimpleConnectionPool,ThreadedConnectionPool aiomysql:create_pool,Pool aiopg:create_pool
sql.engine          sqlalchemy:create_engine,create_async_engine,Engine,AsyncEngine sqlmodel:create_engine
sql.sessionmaker    sqlalchemy:sessionmaker,async_sessionmaker,scoped_session,async_scoped_session
sql.session         sqlalchemy:Session,AsyncSession sqlmodel:Session,AsyncSession
sa.table            sqlalchemy:Table
flask.db            flask_sqlalchemy:SQLAlchemy flask_sqlalchemy_lite:SQLAlchemy
peewee.db           peewee:SqliteDatabase,PostgresqlDatabase,MySQLDatabase
                    playhouse:PooledPostgresqlDatabase,PostgresqlExtDatabase
mongo.client        pymongo:MongoClient,AsyncMongoClient motor:AsyncIOMotorClient
mongo.collection    pymongo:Collection motor:AsyncIOMotorCollection
http                requests:Session,session httpx:Client,AsyncClient aiohttp:ClientSession urllib3:PoolManager
                    requests_toolbelt:BaseUrlSession
kafka.consumer      confluent_kafka:Consumer,DeserializingConsumer,AIOConsumer kafka:KafkaConsumer
                    aiokafka:AIOKafkaConsumer
kafka.producer      confluent_kafka:Producer,SerializingProducer kafka:KafkaProducer aiokafka:AIOKafkaProducer
kafka.message       confluent_kafka:Message aiokafka:ConsumerRecord kafka:ConsumerRecord
pika.connection     pika:BlockingConnection,SelectConnection,AsyncioConnection
pika.channel        pika:BlockingChannel,Channel
pika.method         pika:Deliver
pika.properties     pika:BasicProperties
aiopika.connection
                    aio_pika:connect,connect_robust,Connection,RobustConnection,AbstractConnection
                    aio_pika:AbstractRobustConnection
aiopika.channel     aio_pika:Channel,RobustChannel,AbstractChannel,AbstractRobustChannel
aiopika.queue       aio_pika:Queue,RobustQueue,AbstractQueue,AbstractRobustQueue
aiopika.exchange    aio_pika:Exchange,RobustExchange,AbstractExchange
aiopika.message     aio_pika:IncomingMessage,AbstractIncomingMessage
kombu.producer      kombu:Producer
kombu.consumer      kombu:Consumer
kombu.connection    kombu:Connection
nats.client         nats:connect,NATS,Client
nats.js             nats:JetStreamContext
nats.message        nats:Msg
asb.client          azure:ServiceBusClient
asb.receiver        azure:ServiceBusReceiver
asb.sender          azure:ServiceBusSender
asb.message         azure:ServiceBusReceivedMessage,ServiceBusMessage
eventgrid.client    azure:EventGridPublisherClient
eventhub.producer   azure:EventHubProducerClient
eventhub.consumer   azure:EventHubConsumerClient
azure.app           azure:FunctionApp,Blueprint
boto.session        boto3:Session aioboto3:Session aiobotocore:get_session,AioSession
pubsub.subscriber   google:SubscriberClient
pubsub.publisher    google:PublisherClient
pulsar.client       pulsar:Client
pulsar.consumer     pulsar:Consumer
mqtt.client         paho:Client aiomqtt:Client
stomp.connection    stomp:Connection,Connection11,Connection12
celery.app          celery:Celery,current_app
faust.app           faust:App
mcp.server          mcp:FastMCP fastmcp:FastMCP
faststream.broker
                    faststream:KafkaBroker,RabbitBroker,NatsBroker,RedisBroker,ConfluentBroker,MQTTBroker,KafkaRouter
                    faststream:RabbitRouter,NatsRouter,RedisRouter,ConfluentRouter,KafkaRoute
taskiq.broker       taskiq:InMemoryBroker,ZeroMQBroker,async_shared_broker,AsyncBroker,AsyncSharedBroker
                    taskiq_aio_pika:AioPikaBroker taskiq_redis:ListQueueBroker,PubSubBroker,RedisStreamBroker
                    taskiq_nats:NatsBroker,PushBasedJetStreamBroker,PullBasedJetStreamBroker
                    taskiq_aio_kafka:AioKafkaBroker taskiq_aio_sqs:SQSBroker taskiq_pg:AsyncpgBroker
huey                huey:RedisHuey,SqliteHuey,MemoryHuey,PriorityRedisHuey,RedisExpireHuey,FileHuey,Huey
procrastinate.app   procrastinate:App,Blueprint
rq.queue            rq:Queue django_rq:get_queue
arq.pool            arq:create_pool,ArqRedis
web.app             fastapi:FastAPI,APIRouter flask:Flask,Blueprint quart:Quart,Blueprint starlette:Starlette,Router
                    sanic:Sanic,Blueprint litestar:Litestar bottle:Bottle ninja:NinjaAPI,Router aiohttp:RouteTableDef
twilio              twilio:Client vonage:Client,Sms,Vonage messagebird:Client nexmo:Client plivo:RestClient
                    azure:SmsClient telnyx:Message sinch:SinchClient infobip_channels:SMSChannel
sendgrid            sendgrid:SendGridAPIClient python_http_client:Client mailjet_rest:Client mailgun:Client
smtp                smtplib:SMTP,SMTP_SSL aiosmtplib:SMTP yagmail:SMTP redmail:EmailSender
mailer              flask_mail:Mail,Mailer fastapi_mail:FastMail flask_mailman:Mail postmarker:PostmarkClient
                    mailersend:NewEmail,MailerSendClient mailchimp_transactional:Client
                    sib_api_v3_sdk:TransactionalEmailsApi mandrill:Mandrill sparkpost:SparkPost customerio:APIClient
                    azure:EmailClient courier:Courier trycourier:Courier loops:LoopsClient
mail.message        django:EmailMessage,EmailMultiAlternatives flask_mailman:EmailMessage anymail:AnymailMessage
chat                slack_sdk:WebClient,AsyncWebClient,WebhookClient slack:WebClient telegram:Bot
                    telebot:TeleBot,AsyncTeleBot aiogram:Bot discord_webhook:DiscordWebhook onesignal_sdk:Client
                    pusher:Pusher pusher_push_notifications:PushNotifications exponent_server_sdk:PushClient
                    pyfcm:FCMNotification apns2:APNsClient
stripe.client       stripe:StripeClient
square              square:Client,Square,AsyncSquare
adyen               Adyen:Adyen
braintree           braintree:BraintreeGateway
mollie              mollie:Client
keyed.payment       modern_treasury:ModernTreasury,AsyncModernTreasury increase:Increase,AsyncIncrease lithic:Lithic
                    xendit:ApiClient,Xendit chargebee:Chargebee
razorpay            razorpay:Client
gocardless          gocardless_pro:Client
checkout            checkout_sdk:CheckoutSdk
plaid               plaid:PlaidApi
dwolla              dwollav2:Client,Token
coinbase            coinbase_commerce:Client
payment             paypalrestsdk:Payment,Payout,Sale,Capture,Authorization iyzipay:Payment mercadopago:SDK
                    authorizenet:createTransactionController paystackapi:Transaction,Transfer
                    omise:Charge,Transfer,Refund
                    rave_python:Rave conekta:Order,Charge paddle_billing:Client recurly:Client klarna:Client
paypal.http         paypalcheckoutsdk:PayPalHttpClient paypalhttp:HttpClient
thread              threading:Thread,Timer multiprocessing:Process
task.group          asyncio:TaskGroup anyio:create_task_group trio:open_nursery
background          fastapi:BackgroundTasks starlette:BackgroundTasks
executor            concurrent:ThreadPoolExecutor,ProcessPoolExecutor multiprocessing:Pool,ThreadPool
process.lock        threading:Lock,RLock,Semaphore,BoundedSemaphore,Condition
                    asyncio:Lock,Semaphore,Condition,BoundedSemaphore multiprocessing:Lock,RLock anyio:Lock,Semaphore
                    filelock:FileLock
eo.store            effectonce:connect,Store,RedisStore,PostgresStore
eo.inbox            effectonce:Inbox
eo.outbox           effectonce:Outbox
eo.intents          effectonce:Intents
eo.worker           effectonce:Worker
eo.saga             effectonce:Saga
babelqueue          babelqueue:BabelQueue
powertools.store    aws_lambda_powertools:DynamoDBPersistenceLayer,RedisCachePersistenceLayer,CachePersistenceLayer
powertools.batch    aws_lambda_powertools:BatchProcessor,AsyncBatchProcessor,SqsFifoPartialProcessor
lambda.event        aws_lambda_powertools:SQSEvent,SNSEvent,KinesisStreamEvent,DynamoDBStreamEvent
sqs.record          aws_lambda_powertools:SQSRecord
web.socket          fastapi:WebSocket starlette:WebSocket websockets:connect,WebSocketServerProtocol
                    aiohttp:WebSocketResponse socketio:AsyncServer,Server,RedisManager,AsyncRedisManager
web.request         fastapi:Request starlette:Request django:HttpRequest flask:request quart:request
"""


def _entries_by_tag(table: str) -> Iterator[tuple[str, str]]:
    """The entries of a table, each with its tag. A line that begins with a space continues the tag above it."""
    tag = ""
    for line in table.strip().splitlines():
        entries = line.split()
        if not line.startswith(" "):
            tag = entries.pop(0)
        for entry in entries:
            yield tag, entry


#: (package, callable or class): the tag.
TYPES: dict[tuple[str, str], str] = {
    (package, name): tag
    for tag, entry in _entries_by_tag(_TYPES)
    for package, _, names in [entry.partition(":")]
    for name in names.split(",")
}

LIBRARIES = frozenset(top for top, _ in TYPES) | {
    "aws_lambda_powertools",
    "backoff",
    "boto3",
    "celery_once",
    "celery_singleton",
    "dramatiq",
    "firebase_admin",
    "idemkit",
    "lagom",
    "opentelemetry",
    "pydantic",
    "resend",
    "retrying",
    "sentry_sdk",
    "sqlalchemy",
    "sqlmodel",
    "stamina",
    "stripe",
    "structlog",
    "tenacity",
    "tortoise",
    "typer",
    "click",
    "loguru",
    "rest_framework",
    "svix",
    "functions_framework",
    "django",
    "botocore",
    "faust",
    "nameko",
    "peewee",
    "beanie",
    "mongoengine",
    "anymail",
    "msgspec",
    "orjson",
    "ujson",
    "simplejson",
    "attrs",
    "attr",
    "prometheus_client",
    "dotenv",
    "pytest",
    "numpy",
    "pandas",
}


_AWS_TYPES = {"Table": "dynamo.table", "Queue": "sqs.queue", "Topic": "sns.topic"}


def tag_of(ref: str) -> str:
    """The tag of the object that calling ``ref`` returns, or that an annotation ``ref`` stands for; "" if unknown."""
    parts = ref.split(".")
    top, last = parts[0], parts[-1]
    if tag := TYPES.get((top, last), ""):
        return tag
    if len(parts) > 1:  # a factory on the class: Redis.from_url(…)
        if last in ("from_url", "connect", "create", "from_env", "from_connection_string", "AsyncClient"):
            return TYPES.get((top, parts[-2]), "")
        if top.startswith(("mypy_boto3_", "types_boto3_")):
            return _AWS_TYPES.get(last, f"aws.{top.rpartition('_')[2]}" if last.endswith("Client") else "")
        if top == "faststream" and last.endswith(("Broker", "Router")):
            return "faststream.broker"
        if top.startswith("taskiq") and last.endswith("Broker"):
            return "taskiq.broker"
    return ""


#: tag: attribute=tag of that attribute, or of its result if it is called.
_ATTRIBUTES = """
redis.sentinel      master_for=redis slave_for=redis
redis               pipeline=redis lock=lock client=redis register_script=redis.script
sql.conn            cursor=sql.cursor transaction=tx begin=tx begin_nested=savepoint execution_options=sql.conn
                    connection=sql.conn
sql.auto            cursor=sql.cursor transaction=tx connection=sql.auto
sql.autopool        acquire=sql.auto
sql.pool            connection=sql.conn acquire=sql.conn getconn=sql.conn
sql.engine          connect=sql.conn begin=tx.conn raw_connection=sql.conn
sql.sessionmaker    begin=tx.session
sql.session         begin=tx begin_nested=savepoint connection=sql.conn
flask.db            session=sql.session engine=sql.engine
peewee.db           atomic=tx transaction=tx
pika.connection     channel=pika.channel
aiopika.connection  channel=aiopika.channel
aiopika.channel     declare_queue=aiopika.queue get_queue=aiopika.queue declare_exchange=aiopika.exchange
                    get_exchange=aiopika.exchange default_exchange=aiopika.exchange
kombu.connection    Producer=kombu.producer SimpleQueue=kombu.producer
nats.client         jetstream=nats.js
nats.sub            messages=stream:nats
asb.client          get_queue_receiver=asb.receiver get_subscription_receiver=asb.receiver
                    get_queue_sender=asb.sender get_topic_sender=asb.sender
aws.resource.sqs    Queue=sqs.queue get_queue_by_name=sqs.queue
aws.resource.dynamodb Table=dynamo.table
aws.resource.sns    Topic=sns.topic
pulsar.client       subscribe=pulsar.consumer create_producer=pulsar.producer
mongo.client        get_database=mongo.db get_default_database=mongo.db
mongo.db            get_collection=mongo.collection
aiopika.message     process=message.process
pika.message        process=message.process
redis.pubsub        listen=redis.pubsub
eo.inbox            on_table=eo.inbox
celery.self         request=celery.request
"""

#: (tag, attribute): the tag of that attribute, or of its result if it is called.
ATTRIBUTES: dict[tuple[str, str], str] = {
    (tag, name): result for tag, entry in _entries_by_tag(_ATTRIBUTES) for name, _, result in [entry.partition("=")]
}

#: Methods that return an object of the same kind: `broker.with_result_backend(…)`, `await x.connect()`.
FLUENT_METHOD = re.compile(r"with_\w+|__aenter__|__enter__|include_router")

_DEDUP_NAME = re.compile(
    r"(?:^|[^a-z])(?:"
    r"processed|handled|seen|dedup\w*|de_?dup\w*|idempot\w*|inbox|consumed|already|once|applied|duplicate\w*"
    r"|(?:message|event|msg|webhook|delivery|request|job|task)s?_?(?:ids?|log|seen|receipts?|keys?|dedup\w*)"
    r"|(?:stripe|paypal|webhook|inbound|incoming|received|external|provider)_?(?:events?|messages?|deliver\w+)"
    r")(?:$|[^a-z])",
    re.IGNORECASE,
)
"""Names of tables, keys and models that are there to dedup. A match only makes the checker more lenient, or decides
which of two rules fits; it is never the reason for a finding."""

_GUARD_NAME = re.compile(
    r"(?:^|_)(?:seen|dup\w*|is_dup\w*|dedup\w*|already\w*|processed|handled|first|is_new|first_time|claim\w*|idempot\w*"
    r"|once|exactly_once|replay\w*|acquire\w*|check_and_\w+|try_(?:begin|start|lock|claim|acquire)|begin_once|reserve_key"
    r"|was_\w+|has_been_\w+|mark_\w+|record_if_new|start_processing|should_process)(?:$|_)",
    re.IGNORECASE,
)
"""Names of guards among the functions, decorators and context managers whose code is not in the project."""


def to_snake_case(name: str) -> str:
    """``IdempotentTask`` as ``idempotent_task``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def is_dedup_name(name: str) -> bool:
    """Whether a table, key or model is there to dedup, by its name."""
    return bool(_DEDUP_NAME.search(to_snake_case(name).replace("-", "_")) or _DEDUP_NAME.search(name))


def is_guard_name(name: str) -> bool:
    """Whether a function or class whose code is not in the project is a guard, by its name."""
    return bool(_GUARD_NAME.search(to_snake_case(name)))
