// A camera, a listener and a caller on Fast DDS (Debian's libfastrtps-dev, 2.9.1), for the tests of the node's
// own DDS client. Type support is by hand: CDR bytes as they are. What was seen goes to standard output as JSON.
//
//     g++ -O1 -std=c++17 peer.cpp -lfastrtps -lfastcdr -o peer
//     peer stream DOMAIN SECONDS RATE | peer services DOMAIN
//
// Services follow rmw_fastrtps: the request names the reply reader as its related sample identity, the reply
// names the request.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fastdds/dds/domain/DomainParticipant.hpp>
#include <fastdds/dds/domain/DomainParticipantFactory.hpp>
#include <fastdds/dds/publisher/DataWriter.hpp>
#include <fastdds/dds/publisher/Publisher.hpp>
#include <fastdds/dds/subscriber/DataReader.hpp>
#include <fastdds/dds/subscriber/SampleInfo.hpp>
#include <fastdds/dds/subscriber/Subscriber.hpp>
#include <fastdds/dds/topic/Topic.hpp>
#include <fastdds/dds/topic/TopicDataType.hpp>
#include <fastdds/rtps/common/WriteParams.h>

using namespace eprosima::fastdds::dds;
using eprosima::fastrtps::rtps::InstanceHandle_t;
using eprosima::fastrtps::rtps::SerializedPayload_t;
using eprosima::fastrtps::rtps::WriteParams;
using eprosima::fastrtps::types::ReturnCode_t;
using Bytes = std::vector<uint8_t>;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// CDR data without its header of four bytes.
struct Raw { Bytes data; };

class RawType : public TopicDataType {
public:
    explicit RawType(const std::string& name) {
        setName(name.c_str());
        m_typeSize = 2 << 20;
        m_isGetKeyDefined = false;
    }
    bool serialize(void* from, SerializedPayload_t* to) override {
        auto& data = static_cast<Raw*>(from)->data;
        const uint8_t header[4] = {0, 1, 0, 0};
        std::memcpy(to->data, header, 4);
        std::memcpy(to->data + 4, data.data(), data.size());
        to->encapsulation = CDR_LE;
        to->length = static_cast<uint32_t>(data.size() + 4);
        return true;
    }
    bool deserialize(SerializedPayload_t* from, void* to) override {
        static_cast<Raw*>(to)->data.assign(from->data + 4, from->data + from->length);
        return true;
    }
    std::function<uint32_t()> getSerializedSizeProvider(void* data) override {
        return [data] { return static_cast<uint32_t>(static_cast<Raw*>(data)->data.size() + 4); };
    }
    void* createData() override { return new Raw; }
    void deleteData(void* data) override { delete static_cast<Raw*>(data); }
    bool getKey(void*, InstanceHandle_t*, bool) override { return false; }
};

[[noreturn]] void fail(const std::string& what) {
    std::cerr << what << std::endl;
    std::_Exit(1);
}

class Graph {
public:
    explicit Graph(int domain) {
        // Default settings, as a ROS node has them.
        participant = DomainParticipantFactory::get_instance()->create_participant(domain, PARTICIPANT_QOS_DEFAULT);
        if (!participant) fail("no participant");
        publisher = participant->create_publisher(PUBLISHER_QOS_DEFAULT);
        subscriber = participant->create_subscriber(SUBSCRIBER_QOS_DEFAULT);
    }
    DataWriter* writer(const std::string& topic, const std::string& type, int depth, bool latched = false) {
        DataWriterQos qos = DATAWRITER_QOS_DEFAULT;
        qos.reliability().kind = RELIABLE_RELIABILITY_QOS;
        qos.durability().kind = latched ? TRANSIENT_LOCAL_DURABILITY_QOS : VOLATILE_DURABILITY_QOS;
        qos.history().depth = depth;
        // As rmw_fastrtps: messages vary in size.
        qos.endpoint().history_memory_policy = eprosima::fastrtps::rtps::PREALLOCATED_WITH_REALLOC_MEMORY_MODE;
        qos.publish_mode().kind = ASYNCHRONOUS_PUBLISH_MODE;
        return publisher->create_datawriter(make(topic, type), qos);
    }
    DataReader* reader(const std::string& topic, const std::string& type, int depth, bool latched = false) {
        DataReaderQos qos = DATAREADER_QOS_DEFAULT;
        qos.reliability().kind = RELIABLE_RELIABILITY_QOS;
        qos.durability().kind = latched ? TRANSIENT_LOCAL_DURABILITY_QOS : VOLATILE_DURABILITY_QOS;
        qos.history().depth = depth;
        qos.endpoint().history_memory_policy = eprosima::fastrtps::rtps::PREALLOCATED_WITH_REALLOC_MEMORY_MODE;
        return subscriber->create_datareader(make(topic, type), qos);
    }

private:
    Topic* make(const std::string& name, const std::string& type) {
        TypeSupport(new RawType(type)).register_type(participant);
        auto*& topic = topics[name];
        if (!topic) topic = participant->create_topic(name, type, TOPIC_QOS_DEFAULT);
        if (!topic) fail("no topic " + name);
        return topic;
    }
    DomainParticipant* participant;
    Publisher* publisher;
    Subscriber* subscriber;
    std::map<std::string, Topic*> topics;
};

class Out {
public:
    Bytes data;
    void align(size_t n) { while (data.size() % n) data.push_back(0); }
    template <class T> void put(T value) {
        align(sizeof(T));
        const auto* from = reinterpret_cast<const uint8_t*>(&value);
        data.insert(data.end(), from, from + sizeof(T));
    }
    void text(const std::string& text) {
        put<uint32_t>(text.size() + 1);
        data.insert(data.end(), text.begin(), text.end());
        data.push_back(0);
    }
};

class In {
public:
    explicit In(const Bytes& data) : data(data) {}
    template <class T> T get() {
        at = (at + sizeof(T) - 1) / sizeof(T) * sizeof(T);
        T value;
        need(sizeof(T));
        std::memcpy(&value, data.data() + at, sizeof(T));
        at += sizeof(T);
        return value;
    }
    std::string text() {
        const auto length = get<uint32_t>();
        need(length);
        std::string text(data.begin() + at, data.begin() + at + (length ? length - 1 : 0));
        at += length;
        return text;
    }
    int64_t stamp() {
        const int64_t sec = get<int32_t>();
        return sec * 1000000000 + get<uint32_t>();
    }
    const uint8_t* here(size_t bytes) { need(bytes); return data.data() + at; }

private:
    void need(size_t bytes) { if (at + bytes > data.size()) fail("a message breaks off"); }
    const Bytes& data;
    size_t at = 0;
};

std::vector<Bytes> take(DataReader* reader) {
    std::vector<Bytes> all;
    Raw raw;
    SampleInfo info;
    while (reader->take_next_sample(&raw, &info) == ReturnCode_t::RETCODE_OK)
        if (info.valid_data) all.push_back(raw.data);
    return all;
}

std::string tf(const Bytes& data) {
    In in(data);
    std::ostringstream out;
    const auto count = in.get<uint32_t>();
    for (uint32_t k = 0; k < count; ++k) {
        const auto at = in.stamp();
        const auto parent = in.text(), child = in.text();
        for (int i = 0; i < 7; ++i) in.get<double>();
        out << (k ? "," : "") << "[\"" << parent << "\",\"" << child << "\"," << at << "]";
    }
    return "[" + out.str() + "]";
}

std::string cloud(const Bytes& data) {
    In in(data);
    in.stamp();
    in.text();
    in.get<uint32_t>();
    const auto width = in.get<uint32_t>();
    const auto fields = in.get<uint32_t>();
    for (uint32_t k = 0; k < fields; ++k) {
        in.text();
        in.get<uint32_t>();
        in.get<uint8_t>();
        in.get<uint32_t>();
    }
    in.get<uint8_t>();
    in.get<uint32_t>();
    in.get<uint32_t>();
    const auto bytes = in.get<uint32_t>();
    uint32_t revision = 0;
    if (width) std::memcpy(&revision, in.here(28) + 24, 4);
    std::ostringstream out;
    out << "[" << revision << "," << width << "," << bytes << "]";
    return out.str();
}

std::string stamp(const Bytes& data) { return std::to_string(In(data).stamp()); }

std::string poses(const Bytes& data) {
    In in(data);
    in.stamp();
    in.text();
    return std::to_string(in.get<uint32_t>());
}

struct Heard {
    std::string name;
    DataReader* reader;
    std::string (*show)(const Bytes&);
    std::vector<std::string> seen;
    void collect() { for (const auto& data : take(reader)) seen.push_back(show(data)); }
};

std::string list(const std::vector<std::string>& items) {
    std::string out;
    for (const auto& item : items) out += (out.empty() ? "" : ",") + item;
    return "[" + out + "]";
}

const std::string NODE = "rt/mast3r_slam/";
// What a reader keeps is enough for all that comes while this process does not get to look: what is tested is
// what arrives.
const int DEEP = 4000;

void stream(int domain, double seconds, double rate) {
    Graph graph(domain);
    auto pose = "geometry_msgs::msg::dds_::PoseWithCovarianceStamped_";
    auto points = "sensor_msgs::msg::dds_::PointCloud2_";
    std::vector<Heard> heard = {
        {"tf", graph.reader("rt/tf", "tf2_msgs::msg::dds_::TFMessage_", DEEP), tf, {}},
        {"odometry", graph.reader(NODE + "odometry", "nav_msgs::msg::dds_::Odometry_", DEEP), stamp, {}},
        {"pose", graph.reader(NODE + "pose", pose, DEEP), stamp, {}},
        {"points", graph.reader(NODE + "points", points, DEEP), cloud, {}},
        {"map_points", graph.reader(NODE + "map_points", points, DEEP, true), cloud, {}},
        {"path", graph.reader(NODE + "path", "nav_msgs::msg::dds_::Path_", 1, true), poses, {}},
    };
    auto collect = [&] { for (auto& topic : heard) topic.collect(); };
    auto* statics = graph.writer("rt/tf_static", "tf2_msgs::msg::dds_::TFMessage_", 1, true);
    auto* images = graph.writer("rt/image", "sensor_msgs::msg::dds_::Image_", 5);

    Raw fixed;
    {
        Out out;
        out.put<uint32_t>(1);
        out.put<int32_t>(0);
        out.put<uint32_t>(0);
        out.text("base_link");
        out.text("camera");
        for (double v : {0.2, 0.0, 0.5, -0.5, 0.5, -0.5, 0.5}) out.put<double>(v);
        fixed.data = out.data;
    }
    statics->write(&fixed);

    Raw image;
    {
        Out out;
        out.put<int32_t>(0);
        out.put<uint32_t>(0);
        out.text("camera");
        out.put<uint32_t>(480);
        out.put<uint32_t>(640);
        out.text("rgb8");
        out.put<uint8_t>(0);
        out.put<uint32_t>(1920);
        out.put<uint32_t>(1920 * 480);
        out.data.resize(out.data.size() + 1920 * 480, 90);
        image.data = out.data;
    }
    const auto deadline = Clock::now() + 60s;
    PublicationMatchedStatus matched;
    do {
        if (Clock::now() > deadline) fail("the node's image subscription was not found");
        std::this_thread::sleep_for(10ms);
        images->get_publication_matched_status(matched);
    } while (matched.current_count == 0);
    std::this_thread::sleep_for(2s);

    std::vector<std::string> sent;
    const auto start = Clock::now();
    for (int k = 0; k < static_cast<int>(seconds * rate); ++k) {
        while (Clock::now() < start + std::chrono::duration<double>(k / rate)) {
            collect();
            std::this_thread::sleep_for(1ms);
        }
        const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::system_clock::now().time_since_epoch()).count();
        const auto sec = static_cast<int32_t>(now / 1000000000);
        const auto nanosec = static_cast<uint32_t>(now % 1000000000);
        std::memcpy(image.data.data(), &sec, 4);
        std::memcpy(image.data.data() + 4, &nanosec, 4);
        if (images->write(&image)) sent.push_back(std::to_string(now));
    }
    for (const auto until = Clock::now() + 8s; Clock::now() < until; std::this_thread::sleep_for(10ms)) collect();

    Graph second(domain);
    std::vector<Heard> late = {
        {"map_points", second.reader(NODE + "map_points", points, DEEP, true), cloud, {}},
        {"path", second.reader(NODE + "path", "nav_msgs::msg::dds_::Path_", 1, true), poses, {}},
    };
    for (const auto until = Clock::now() + 8s; Clock::now() < until; std::this_thread::sleep_for(10ms)) {
        collect();
        for (auto& topic : late) topic.collect();
    }
    std::cout << "{\"sent\":" << list(sent);
    for (const auto& topic : heard) std::cout << ",\"" << topic.name << "\":" << list(topic.seen);
    std::cout << ",\"late\":{\"map_points\":" << list(late[0].seen) << ",\"path\":" << list(late[1].seen) << "}}"
              << std::endl;
}

class Client {
public:
    Client(Graph& graph, const std::string& service, const std::string& package, const std::string& type)
        : service(service) {
        const auto full = package + "::srv::dds_::" + type;
        replies = graph.reader("rr" + service + "Reply", full + "_Response_", 10);
        requests = graph.writer("rq" + service + "Request", full + "_Request_", 10);
    }
    Bytes call(const Bytes& request) {
        const auto deadline = Clock::now() + 30s;
        PublicationMatchedStatus there;
        SubscriptionMatchedStatus back;
        do {
            if (Clock::now() > deadline) fail(service + " was not discovered");
            std::this_thread::sleep_for(10ms);
            requests->get_publication_matched_status(there);
            replies->get_subscription_matched_status(back);
        } while (there.current_count == 0 || back.current_count == 0);
        Raw raw{request};
        WriteParams parameters;
        parameters.related_sample_identity().writer_guid() = replies->guid();
        if (!requests->write(&raw, parameters)) fail(service + " took no request");
        const auto number = parameters.sample_identity().sequence_number();
        while (Clock::now() < deadline) {
            Raw answer;
            SampleInfo info;
            while (replies->take_next_sample(&answer, &info) == ReturnCode_t::RETCODE_OK) {
                const auto& to = info.related_sample_identity;
                const bool own = to.writer_guid() == replies->guid() || to.writer_guid() == requests->guid();
                if (info.valid_data && own && to.sequence_number() == number) return answer.data;
            }
            std::this_thread::sleep_for(2ms);
        }
        fail(service + " did not answer");
    }

private:
    std::string service;
    DataReader* replies;
    DataWriter* requests;
};

void services(int domain) {
    Graph graph(domain);
    const std::string node = "/mast3r_slam/";
    Client state(graph, node + "get_state", "lifecycle_msgs", "GetState");
    Client pause(graph, node + "pause", "std_srvs", "Trigger");
    Client put(graph, node + "set_parameters", "rcl_interfaces", "SetParameters");
    Client get(graph, node + "get_parameters", "rcl_interfaces", "GetParameters");
    const Bytes nothing(1);
    const auto state_answer = state.call(nothing);
    In state_in(state_answer);
    state_in.get<uint8_t>();
    const auto label = state_in.text();
    const auto pause_answer = pause.call(nothing);
    const bool paused = In(pause_answer).get<uint8_t>();
    Out out;
    out.put<uint32_t>(1);
    out.text("max_rate");
    out.put<uint8_t>(3);
    out.put<uint8_t>(0);
    out.put<int64_t>(0);
    out.put<double>(7.5);
    out.text("");
    for (int k = 0; k < 5; ++k) out.put<uint32_t>(0);
    const auto put_answer = put.call(out.data);
    In put_in(put_answer);
    const bool set = put_in.get<uint32_t>() == 1 && put_in.get<uint8_t>();
    Out names;
    names.put<uint32_t>(1);
    names.text("max_rate");
    const auto get_answer = get.call(names.data);
    In get_in(get_answer);
    get_in.get<uint32_t>();
    get_in.get<uint8_t>();
    get_in.get<uint8_t>();
    get_in.get<int64_t>();
    const auto rate = get_in.get<double>();
    std::cout << std::boolalpha << "{\"state\":\"" << label << "\",\"paused\":" << paused << ",\"set\":" << set
              << ",\"max_rate\":" << rate << "}" << std::endl;
}

int main(int count, char** arguments) {
    const std::string what = count > 2 ? arguments[1] : "";
    if (what == "stream" && count == 5) {
        stream(std::atoi(arguments[2]), std::atof(arguments[3]), std::atof(arguments[4]));
    } else if (what == "services" && count == 3) {
        services(std::atoi(arguments[2]));
    } else {
        fail("peer stream DOMAIN SECONDS RATE | peer services DOMAIN");
    }
    // Fast DDS' own clean-up at exit is not what is tested.
    std::cout.flush();
    std::_Exit(0);
}
